"""A benchmark's child: `python -m bench.trainer.child KIND SETTING` keeps one contender ready and times it when asked.

Every line on standard input is a number of seconds; the answer is one JSON line with what about that long a piece of
training measured. The first line it writes says that it is ready. KIND is `step` or `course`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from bench.trainer.contenders import Contender, Measured, Setting, make
from bench.trainer.whole_run import CourseContender, CourseSetting


def main(kind: str, setting: str) -> None:
    # What TensorFlow and Keras print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    arguments = json.loads(setting)
    contender = CourseContender(CourseSetting(**arguments)) if kind == "course" else make(Setting(**arguments))
    contender.train(contender.multiple)
    measured = contender.train(2 * contender.multiple)
    print("ready", file=answers)
    for line in sys.stdin:
        measured = _round(contender, float(line), measured)
        print(json.dumps(asdict(measured)), file=answers)


def _round(contender: Contender, seconds: float, before: Measured) -> Measured:
    steps = seconds * before.steps / before.seconds
    return contender.train(max(1, round(steps / contender.multiple)) * contender.multiple)


if __name__ == "__main__":
    main(*sys.argv[1:])
