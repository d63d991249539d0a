"""Runs the stages of `make test` one after the other: `python tools/run_stages.py STAGE ...`.

Before each stage it prints what the stage does and about how long is left, from the last run on this machine
(build/stage-seconds.json), or from TYPICAL where there was none. It ends at the first stage that fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def left(stages: Sequence[str], expected: Mapping[str, float]) -> str:
    """The expected time of these stages in minutes."""
    minutes = max(1, round(sum(expected.get(stage, 60.0) for stage in stages) / 60))
    return f"about {minutes} {'minute' if minutes == 1 else 'minutes'}"


def main(stages: Sequence[str]) -> int:
    """Returns the exit code of the first stage that fails, else 0."""
    kept = ROOT / "build" / "stage-seconds.json"
    last: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    texts = descriptions((ROOT / "Makefile").read_text(encoding="utf-8"))
    took: dict[str, float] = {}
    code = 0
    for number, stage in enumerate(stages):
        expected = TYPICAL | last
        print(
            f"=== {number + 1} of {len(stages)}: make {stage}: {texts.get(stage, '')}; "
            f"{left([stage], expected)}, all that is left {left(stages[number:], expected)}",
            flush=True,
        )
        began = time.monotonic()
        code = subprocess.run(["make", "--no-print-directory", stage], cwd=ROOT, check=False).returncode
        took[stage] = time.monotonic() - began
        if code:
            break
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(last | {each: round(seconds) for each, seconds in took.items()}))
    print("=== times")
    for stage, seconds in took.items():
        print(f"{stage:<14} {seconds:5.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
