"""Runs the programs one after the other and writes their outcomes.

    python -m bench.tensorflow_cloud CHECKOUT [--only WORD] [--work FOLDER] [--markdown FILE]

The logs are in FOLDER/NAME/log.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.tensorflow_cloud import stubs
from bench.tensorflow_cloud.programs import PROGRAMS, Program
from bench.tensorflow_cloud.snippets import snippets

DRIVE = Path(__file__).with_name("drive.py")
ROOT = Path(__file__).parents[2]
SOURCES = ("api", "client", "trainer", "operator")
SECONDS = 900
_BLANK = re.compile(r"\[(?:your|gcs|gcp|name)-[a-z-]+\]")
_CELL = re.compile(r"CELL \d+: .*")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program: its jobs' ends, and the last line of the error if there is one."""

    ran: bool
    jobs: list[str]
    why: str
    seconds: float


def run(program: Program, checkout: Path, work: Path, packages: str) -> Outcome:
    place = work / re.sub(r"\W+", "_", program.name)
    shutil.rmtree(place, ignore_errors=True)
    stubs.write(place / "stubs", colab=program.colab)
    folder, buckets = place / "program", place / "buckets"
    shutil.copytree(checkout / program.folder, folder)
    buckets.mkdir()
    file = folder / Path(program.file).relative_to(program.folder)
    for each in folder.rglob("*"):
        if each.suffix in (".py", ".ipynb"):
            _fill_in(each, program.replaced, buckets)
    if program.kind == "notebook":
        # A notebook runs in its own folder.
        folder = file.parent
    log = place / "log.txt"
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        command = [sys.executable, str(DRIVE), program.kind, os.path.relpath(file, folder), *program.arguments]
        environment = _environment(program, place, packages)
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    jobs = [_job(each) for each in sorted([*folder.glob("runs/*/job.json"), *folder.rglob("run/job.json")])]
    if (folder / "job.json").exists():
        jobs += [_asked(json.loads(line)) for line in (folder / "job.json").read_text(encoding="utf-8").splitlines()]
    text = log.read_text(encoding="utf-8", errors="replace")
    why = (
        ""
        if code == 0
        else f"not over after {SECONDS} s"
        if code is None
        else _why(text.replace(f"{folder}/", "").replace(f"{place}/", ""))
    )
    return Outcome(code == 0, jobs, why, time.monotonic() - began)


def _fill_in(file: Path, replaced: Mapping[str, str], buckets: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for old, new in {"gs://": f"{buckets}/", **replaced}.items():
        text = text.replace(old, new)
    # Names that the user must fill in: '[gcs-bucket-name]'.
    text = _BLANK.sub("mine", text)
    file.write_text(text, encoding="utf-8")


def _environment(program: Program, place: Path, packages: str) -> dict[str, str]:
    path = os.pathsep.join(
        [str(place / "stubs"), *(str(ROOT / each) for each in SOURCES), *([packages] if packages else [])]
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MPTRAINING_", "TF_KERAS", "TF_USE_LEGACY"))
    }
    environment |= {
        "PYTHONPATH": path,
        "PATH": f"{place / 'stubs' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "IPYTHONDIR": str(place / ".ipython"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return environment | ({"OF_COLAB": "1"} if program.colab else {})


def _job(file: Path) -> str:
    """Describe a job in a few words: its nodes and devices, its Keras, and its end."""
    job = json.loads(file.read_text(encoding="utf-8"))
    result = file.with_name("result.json")
    reason = json.loads(result.read_text(encoding="utf-8"))["reason"] if result.exists() else "not ended"
    generation = {"Legacy": "tf_keras", "Keras3": "Keras 3"}[job["keras"]]
    return f"{job['processes']} x {job['replicas'] // job['processes']} devices, {generation}: {reason}"


def _why(text: str) -> str:
    cells = _CELL.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    reason = cells[-1] if cells else lines[-1] if lines else "no output"
    return reason if len(reason) < 120 else reason[:117] + "…"


def _asked(job: Mapping[str, Any]) -> str:
    """Describe a job that was checked and not started, in a few words."""
    kind, count = job["accelerator"]["type"], job["replicas"] // job["processes"]
    return f"checked: {job['processes']} x {count} {kind}, {job['strategy']}"


def table(programs: Sequence[Program], outcomes: Mapping[str, Outcome]) -> str:
    rows = ["| Program | Runs | Its jobs here | Why not, or what was changed |", "|---|---|---|---|"]
    for program in programs:
        each = outcomes.get(program.name)
        if each is not None:
            notes = "; ".join(filter(None, [program.changed, "" if each.ran else program.because, each.why]))
            jobs = ", ".join(each.jobs) or "none"
            rows.append(f"| {program.name} | {'yes' if each.ran else 'no'} | {jobs} | {notes.replace('|', '/')} |")
    return "\n".join(rows) + "\n"


def _kept(file: Path) -> dict[str, Outcome]:
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: Outcome(**each) for name, each in stored.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the repository tensorflow/cloud")
    parser.add_argument("--only", default=None, help="programs whose name has this in it")
    parser.add_argument("--work", type=Path, default=Path("build/tensorflow-cloud-examples"))
    parser.add_argument("--packages", default="", help="a folder of pip install --target: keras-tuner<1.4 kt-legacy")
    parser.add_argument("--markdown", type=Path, help="a document whose table is written again")
    given = parser.parse_args()
    work, checkout = given.work.resolve(), given.checkout.resolve()
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "outcomes.json"
    programs = (*PROGRAMS, *snippets(checkout, work))
    for program in programs:
        if given.only is None or (given.only and given.only in program.name):
            last = run(program, checkout, work, given.packages)
            print(f"{program.name}: {'ran' if last.ran else last.why} {last.jobs} {last.seconds:.0f} s", flush=True)
            # Outcomes of earlier runs count until the program is run again.
            stored = {name: asdict(each) for name, each in _kept(kept).items()} | {program.name: asdict(last)}
            kept.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if given.markdown is not None:
        text = given.markdown.read_text(encoding="utf-8").partition("\n| Program |")[0]
        given.markdown.write_text(f"{text.rstrip()}\n\n{table(programs, _kept(kept))}", encoding="utf-8")


if __name__ == "__main__":
    main()
