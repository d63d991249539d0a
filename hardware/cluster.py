"""`python -m hardware.cluster --bucket gs://B --accelerator t4`: the measurements as jobs. `make hardware-gke`.

On a GPU one script job measures everything and keeps its results in its run folder, so that a preempted one continues.
A process that trains on a TPU owns it, so that there each measurement is a job of its own. --dry-run prints the jobs,
--collect only reads what finished jobs have left and writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gke.costs import prices
from gke.pools import POOLS
from hardware.cells import SIZES, Turn, first_pass
from hardware.data import pattern
from hardware.jobs import job, steps
from hardware.machine import Machine
from hardware.measure import ROOT, ran_out_of_memory
from hardware.page import write_page
from hardware.results import Outcome, Results, Round, load
from mptraining_api.accelerators import canonical_name, lookup
from mptraining_api.run_folder import RESULT, Result
from mptraining_api.spec import API_VERSION
from mptraining_records.storage import storage

RESULTS = "hardware.json"
SCRIPT = "hardware/job_script.py"
_FILES = tuple(sorted(path.name for path in Path(__file__).parent.glob("*.py")))
# The measured hour, and the machine's start.
_DEADLINE_SECONDS = 7200
# Of the client's message for a job that the cluster has (mptraining.cluster.errors).
_EXISTS = "of this name exists"


def archive() -> bytes:
    """Return this package as .tgz; the same files make the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as packed:
        for name in _FILES:
            content = (Path(__file__).parent / name).read_bytes()
            entry = tarfile.TarInfo(f"hardware/{name}")
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


def documents(accelerator: str, bucket: str, *, count: int, minutes: float, account: str) -> list[dict[str, Any]]:
    """Return the jobs for one accelerator; `bucket` is a URI under which code, records and run folders are."""
    source = archive()
    digest = hashlib.sha256(source).hexdigest()
    about = lookup(accelerator)
    code = {"archive": {"uri": f"{bucket}/code/{digest}.tgz", "sha256": digest}}
    if about.kind == "tpu":
        found = [
            job(
                turn.cell,
                "full",
                {"type": about.name, "topology": "1x1"},
                train=f"{bucket}/records/{turn.cell.model}/train-*.tfrecord",
                output=f"{bucket}/runs/{_name(about.name, turn)}",
                total_steps=steps(turn.cell, "full"),
            )
            for turn in tpu_turns()
        ]
        names = [_name(about.name, turn) for turn in tpu_turns()]
    else:
        name = _name(about.name)
        script = {"path": SCRIPT, "arguments": ["--minutes", f"{minutes:g}"]}
        # One device: the script's processes make their own strategies.
        spec = {
            "accelerator": {"type": about.name, "countPerNode": count},
            "strategy": "None",
            "precision": {"policy": "float32"},
            "program": {"script": script},
            "output": {"uri": f"{bucket}/runs/{name}"},
        }
        found, names = [{"apiVersion": API_VERSION, "kind": "MPTrainingJob", "spec": spec}], [name]
    for name, one in zip(names, found, strict=True):
        one["metadata"] = {"name": name}
        one["spec"]["source"] = code
        one["spec"]["runPolicy"] = {"activeDeadlineSeconds": _DEADLINE_SECONDS}
        one["spec"]["podTemplate"] = {"serviceAccountName": account}
    return found


def tpu_turns() -> list[Turn]:
    """Return what is measured on a TPU: both policies of every model, from memory, the goal's model several times."""
    return [
        turn
        for turn in first_pass(_tpu("tpu-v5-lite-podslice"), "full")
        if turn.cell.section == "policies" and not turn.cell.needs and turn.cell.source == "synthetic"
    ]


class NoResults(Exception):
    """The jobs have left nothing in the bucket; the message is one line with the next step."""


def costs(accelerator: str, jobs: int, count: int) -> str:
    """Return one line: what the jobs' machines cost at most by the list prices of gke/prices.toml."""
    hours = _DEADLINE_SECONDS / 3600
    known = prices()
    pool = next((one.name for one in POOLS if one.job_accelerator["type"] == accelerator), None)
    time = f"{jobs} job{'s' if jobs > 1 else ''} of at most {hours:g} hours, one machine each"
    if pool is None:
        return f"{time}; no list price of {accelerator} is recorded in gke/prices.toml"
    price = known[pool]
    most = price.hourly * hours * jobs * count
    return (
        f"{time}: at most {most:.2f} US dollars, {price.hourly:g} an hour and device by the list price of {price.date} "
        f"({price.title})"
    )


def collect(accelerator: str, bucket: str, date: str) -> Results:
    """Return the results that the jobs have left in the bucket; a job that has not ended has none.

    Raises NoResults if there are none at all.
    """
    about = lookup(accelerator)
    if about.kind != "tpu":
        uri = f"{bucket}/runs/{_name(about.name)}/{RESULTS}"
        if not storage.exists(uri):
            raise NoResults(
                f"{uri}: missing: job {_name(about.name)} has not measured anything. See why with "
                f"`mptj status {_name(about.name)}`; the page stays as it is"
            )
        return load(storage.read(uri), uri)
    rounds = []
    for turn in tpu_turns():
        uri = f"{bucket}/runs/{_name(about.name, turn)}/{RESULT}"
        if storage.exists(uri):
            rounds.append(tpu_round(turn, Result.read(storage.read(uri))))
    if not rounds:
        raise NoResults(f"{bucket}/runs: no job has ended; see why with `mptj list`. The page stays as it is")
    return Results(_tpu(about.name), "full", date, tuple(rounds))


def tpu_round(turn: Turn, result: Result) -> Round:
    """Return the round of a TPU job's result.json."""
    if result.exit_code:
        outcome: Outcome = "out of memory" if ran_out_of_memory(result.message) else "failed"
        return Round(turn.cell.key, turn.round, outcome, result.seconds, result.message)
    values = {
        "examples_per_second": result.examples_per_second,
        "input_bound_percent": result.input_bound_percent,
        "memory_bytes": result.peak_memory_bytes,
        "weights": "",
    }
    return Round(turn.cell.key, turn.round, "measured", result.seconds, values=values)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hardware.cluster", description=__doc__)
    parser.add_argument("--bucket", required=True, metavar="URI", help="gs://bucket, or a folder in it")
    parser.add_argument("--accelerator", default="t4", help="as `mptj accelerators` lists them")
    parser.add_argument("--count", type=int, default=1, help="GPUs")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--account", default="trainer", help="Kubernetes service account with access to the bucket")
    parser.add_argument("--namespace", default="training")
    parser.add_argument("--dry-run", action="store_true", help="print the jobs; upload and submit nothing")
    parser.add_argument("--collect", action="store_true", help="only write the page from what has finished")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "hardware.md")
    asked = parser.parse_args()
    name, bucket = canonical_name(asked.accelerator), asked.bucket.rstrip("/")
    found = documents(name, bucket, count=asked.count, minutes=asked.minutes, account=asked.account)
    if asked.dry_run:
        print(yaml.safe_dump_all(found, sort_keys=False), end="")
        return
    if not asked.collect:
        print(costs(name, len(found), asked.count), flush=True)
        _upload(name, bucket)
        _submit(found, asked.namespace)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        results = collect(name, bucket, today)
    except NoResults as error:
        sys.exit(str(error))
    for written in write_page(results, asked.page):
        print(written)


def _upload(accelerator: str, bucket: str) -> None:
    source = archive()
    storage.write(f"{bucket}/code/{hashlib.sha256(source).hexdigest()}.tgz", source)
    if lookup(accelerator).kind != "tpu":
        return
    with tempfile.TemporaryDirectory(prefix="mptraining-hardware-") as name:
        for model in SIZES["full"]:
            local = Path(pattern(Path(name), model, "full", "synthetic")).parent
            for file in local.iterdir():
                storage.write(f"{bucket}/records/{model}/{file.name}", file.read_bytes())


def _submit(found: Sequence[Mapping[str, Any]], namespace: str) -> None:
    """Submit the jobs that do not exist and wait for all; one that fails does not keep the page from the others.

    Exits with the message of the command if a job is refused.
    """
    mptj = [sys.executable, "-m", "mptraining"]
    with tempfile.TemporaryDirectory(prefix="mptraining-hardware-") as folder:
        for one in found:
            file = Path(folder, f"{one['metadata']['name']}.yaml")
            file.write_text(json.dumps(one), encoding="utf-8")
            command = [*mptj, "submit", str(file), "--namespace", namespace]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode and _EXISTS not in " ".join(done.stderr.split()):
                sys.exit(done.stderr.strip() or f"`mptj submit` ended with {done.returncode}")
            name = one["metadata"]["name"]
            continued = f"exists   {name}; `mptj cancel {name}` lets the next run measure again"
            print(continued if done.returncode else done.stdout.strip(), flush=True)
    for one in found:
        subprocess.run([*mptj, "wait", one["metadata"]["name"], "--namespace", namespace], check=False)


def _name(accelerator: str, turn: Turn | None = None) -> str:
    """Return a job's name: at most 50 characters."""
    if turn is None:
        return f"hardware-{accelerator}"[:50]
    short = {"float32": "f32", "mixed_bfloat16": "bf16"}[turn.cell.policy]
    again = f"-{turn.round + 1}" if turn.round else ""
    return f"hardware-tpu-{turn.cell.model}-{short}{again}"


def _tpu(accelerator: str) -> Machine:
    # What the machine behind a TPU is, is in the job's log and not in result.json.
    image = "that of the trainer's image"
    return Machine("tpu", lookup(accelerator).title, accelerator, 1, None, "of the TPU's machine", 0, 0, image, image)


if __name__ == "__main__":
    main()
