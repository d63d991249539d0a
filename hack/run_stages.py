"""Runs the stages of `make test` in their order: `python hack/run_stages.py STAGE[+STAGE] ...`.

Stages that are joined by `+` run at the same time: the output of the longest is shown as it comes, that of the others
when they end. Before each it prints what the stage does and about how long is left, from the last run on this machine
(build/stage-seconds.json), or from TYPICAL where there was none. It ends after the first stage that fails, and after
those that run beside it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).parent.parent
# Seconds of each stage on two quiet cores, set-up included.
TYPICAL = {
    "lint": 65,
    "servers": 45,
    "test-unit": 60,
    "test-browser": 50,
    "test-cluster": 300,
    "test-training": 850,
    "test-kind": 590,
}


def descriptions(makefile: str) -> dict[str, str]:
    """The texts after `##` of the targets of a Makefile."""
    return dict(re.findall(r"^([a-z-]+):[^#\n]*## (.+)$", makefile, re.MULTILINE))


def left(groups: Sequence[Sequence[str]], expected: Mapping[str, float]) -> str:
    """The expected time of these groups in minutes; the stages of a group run at the same time."""
    seconds = sum(max(expected.get(stage, 60.0) for stage in group) for group in groups)
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} {'minute' if minutes == 1 else 'minutes'}"


def together(commands: Mapping[str, Sequence[str]], shown: str) -> dict[str, tuple[int, float]]:
    """Run the commands at the same time; return the exit code and the seconds of each.

    The output of `shown` is not redirected. That of another command is printed in one piece when it ends.
    """

    def run(name: str) -> tuple[str, int, float, str]:
        began = time.monotonic()
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:
            output = None if name == shown else kept
            code = subprocess.run(
                commands[name], cwd=ROOT, check=False, stdout=output, stderr=output and subprocess.STDOUT
            ).returncode
            kept.seek(0)
            return name, code, time.monotonic() - began, kept.read()

    ended: dict[str, tuple[int, float]] = {}
    with ThreadPoolExecutor(len(commands)) as threads:
        for done in as_completed([threads.submit(run, name) for name in commands]):
            name, code, seconds, text = done.result()
            ended[name] = code, seconds
            if name != shown:
                print(f"\n=== {name} {'failed' if code else 'passed'}:\n{text}", end="", flush=True)
    return ended


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code of the first stage that fails, else 0."""
    kept = ROOT / "build" / "stage-seconds.json"
    last: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    texts = descriptions((ROOT / "Makefile").read_text(encoding="utf-8"))
    groups = [argument.split("+") for argument in arguments]
    took: dict[str, float] = {}
    code = 0
    for number, group in enumerate(groups):
        expected = TYPICAL | last
        for stage in group:
            print(
                f"=== {number + 1} of {len(groups)}: make {stage}: {texts.get(stage, '')}; "
                f"{left([[stage]], expected)}, all that is left {left(groups[number:], expected)}",
                flush=True,
            )
        ended = together(
            {stage: ["make", "--no-print-directory", stage] for stage in group},
            shown=max(group, key=lambda stage: expected.get(stage, 60.0)),
        )
        took |= {stage: ended[stage][1] for stage in group}
        code = next((ended[stage][0] for stage in group if ended[stage][0]), 0)
        if code:
            break
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(last | {stage: round(seconds) for stage, seconds in took.items()}))
    print("=== times")
    for stage, seconds in took.items():
        print(f"{stage:<14} {seconds:5.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
