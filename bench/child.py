"""A benchmark's child: `python -m bench.child SETTING` keeps one contender ready and times it when asked.

Every line on standard input is a number of seconds; the answer is one JSON line with what that long a piece of
training measured. The first line it writes says that it is ready.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from bench.contenders import Contender, Measured, Setting, make

# `fit` under several steps per execution wants whole executions.
_MULTIPLE = 32
_FIRST_STEPS = 64


def main(setting: str) -> None:
    # What TensorFlow and Keras print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contender = make(Setting(**json.loads(setting)))
    contender.train(_FIRST_STEPS)
    speed = _speed(contender.train(_FIRST_STEPS))
    print("ready", file=answers)
    for line in sys.stdin:
        measured = _round(contender, float(line), speed)
        speed = _speed(measured)
        print(json.dumps(asdict(measured)), file=answers)


def _round(contender: Contender, seconds: float, speed: float) -> Measured:
    steps = max(1, round(seconds * speed / _MULTIPLE)) * _MULTIPLE
    return contender.train(steps)


def _speed(measured: Measured) -> float:
    return measured.steps / measured.seconds


if __name__ == "__main__":
    main(sys.argv[1])
