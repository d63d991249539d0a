"""Step time, examples per second and peak memory of jobs on this machine's devices, by precision policy.

    python hack/bench/hardware.py job.yaml …          each job with each policy, three rounds, by `mptj run`
    python hack/bench/hardware.py --runs gs://b/run … the table of runs that exist, such as those of `mptj submit`

Rounds interleave the policies, so that a machine that gets slower does so for all; the table has medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from mptraining.comparison.values import latest
from mptraining.runs import Run, load_run

ROOT = Path(__file__).parents[2]
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def with_policy(file: Path, policy: str) -> Path:
    """Write the job with the policy next to its file, since paths are relative to it; return the new file."""
    document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    document["spec"].setdefault("precision", {})["policy"] = policy
    document["metadata"]["name"] = f"{document['metadata']['name']}-{policy.replace('_', '-')}"
    target = file.with_name(f".{file.stem}-{policy}.yaml")
    target.write_text(yaml.safe_dump(document), encoding="utf-8")
    return target


def run(file: Path, policy: str, output: Path) -> Run | None:
    """Train unless an earlier call did; return the run, or None for a job that fails with this policy."""
    if not (output / "result.json").exists():
        job = with_policy(file, policy)
        try:
            command = [sys.executable, "-m", "mptraining", "run", str(job), "--output", str(output), "--plain"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        finally:
            job.unlink()
        if done.returncode:
            print(f"{file.name}, {policy}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
            return None
    return load_run(str(output))


def row(name: str, runs: Sequence[Run]) -> list[str]:
    """Return name, policy, and the medians of the runs: milliseconds a step, examples per second, peak memory."""

    def shown(field: str, unit: float, digits: int) -> str:
        values = [value for each in runs if (value := latest(each, field)) is not None]
        return f"{statistics.median(values) / unit:,.{digits}f}" if values else "-"

    measures = (("step_seconds", 1e-3, 2), ("examples_per_second", 1.0, 0), ("peak_memory_bytes", 2.0**20, 0))
    return [name, str(runs[0].precision), *(shown(*each) for each in measures)]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [("job", "policy", "ms/step", "examples/s", "peak MiB"), ("---", "---", "---:", "---:", "---:"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", type=Path, help="job files")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="default: all three")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "hardware", help="where the runs are kept")
    parser.add_argument("--runs", nargs="+", metavar="RUN", help="run folders that exist; train nothing")
    given = parser.parse_args()
    if given.runs:
        print(table(row(each.name, [each]) for each in map(load_run, given.runs)))
        return
    if not given.jobs:
        parser.error("expected job files or --runs")
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for number in range(given.rounds):
        for file in given.jobs:
            for policy in given.policies:
                done = run(file, policy, given.folder / file.stem / policy / str(number))
                if done is not None:
                    found[file.stem, policy].append(done)
    print(table(row(name, runs) for (name, _), runs in found.items()))


if __name__ == "__main__":
    main()
