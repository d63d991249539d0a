"""Fuzzes all parsers of foreign bytes: `python -m tests.soak.fuzz [--minutes 60] [--targets NAME ...]`.

    python -m tests.soak.fuzz

Each target gets an equal part of the time. The corpus is kept in build/fuzz/corpus and grows from run to run; a finding
is its input with a traceback in build/fuzz/findings. Exit code 1 with findings, also those of an earlier run: delete
them when they are fixed. `--replay FILE` runs the target of one input again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak.fuzz import seeds, targets

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "build" / "fuzz"
PYTHON = ROOT / "build" / "env" / "fuzz" / "bin" / "python"
# libFuzzer ends the process at these: one allocation and all memory in MB, seconds of one input. atheris itself loses
# about 13 MB a second (the same inputs without it: none), so that all memory bounds a process of `_SLICE` seconds.
_ALLOCATION, _MEMORY, _HANG = 512, 8000, 120
_SLICE = 240
# Beyond its time a process is stopped: libFuzzer looks at the clock between two inputs.
_PATIENCE = 300


@dataclass(frozen=True)
class Result:
    target: str
    runs: int
    corpus: int
    seconds: float
    died: str


def fuzz(name: str, seconds: int) -> Result:
    """Fuzz one target for so long, in processes of `_SLICE` seconds that go on from its corpus."""
    began, runs, count = time.monotonic(), 0, 0
    while (left := round(seconds - (time.monotonic() - began))) > 0:
        one = _process(name, min(left, _SLICE))
        runs, count = runs + one.runs, one.corpus
        if one.died:
            break
    return Result(name, runs, count, time.monotonic() - began, one.died)


def _process(name: str, seconds: int) -> Result:
    corpus, findings = FOLDER / "corpus" / name, FOLDER / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(seeds.of(name)):
        (corpus / f"seed-{number}").write_bytes(content)
    options = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={_MEMORY}",
        f"-malloc_limit_mb={_ALLOCATION}",
        f"-timeout={_HANG}",
        "-print_final_stats=1",
    ]
    options += [f"-max_len={targets.LARGEST}", f"-artifact_prefix={findings}/{name}-ended-", str(corpus)]
    began = time.monotonic()
    done = subprocess.run(
        [str(PYTHON), "-m", "tests.soak.fuzz.one", name, str(findings), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds + _PATIENCE,
    )
    told = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    died = "" if done.returncode == 0 else "\n".join(done.stderr.splitlines()[-25:])
    count = sum(1 for _ in corpus.iterdir())
    return Result(name, int(told[0]) if told else 0, count, time.monotonic() - began, died)


def replay(path: Path) -> int:
    name = json.loads(path.with_suffix(".json").read_text())["target"]
    with tempfile.TemporaryDirectory() as folder:
        targets.run(targets.TARGETS[name], path.read_bytes(), Path(folder))
    print(f"{path.name}: {name} does what it must")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzes the parsers of foreign bytes.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--targets", nargs="+", choices=[*targets.TARGETS], default=[*targets.TARGETS])
    parser.add_argument("--replay", type=Path)
    chosen = parser.parse_args()
    if chosen.replay:
        return replay(chosen.replay)
    seconds = max(1, round(60 * chosen.minutes / len(chosen.targets)))
    ended = 0
    for name in chosen.targets:
        result = fuzz(name, seconds)
        print(f"{name:18}{result.runs:>10,} runs{result.corpus:>7,} inputs{result.seconds:>7.0f} s", flush=True)
        if result.died:
            ended += 1
            print(f"{name}: the process ended:\n{result.died}", flush=True)
    found = [json.loads(path.read_text()) for path in sorted((FOLDER / "findings").glob("*.json"))]
    for each in found:
        print(f"{each['target']}: {each['signature']}: {each['error'][:200]} ({each['bytes']} bytes)")
    print(f"{len(found)} findings in {FOLDER / 'findings'}")
    return int(bool(found or ended))


if __name__ == "__main__":
    sys.exit(main())
