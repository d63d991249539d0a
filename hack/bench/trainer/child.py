"""A benchmark's child: `python -m hack.bench.trainer.child SETTING` times one contender on request.

Every line on standard input is a number of seconds; the response is one JSON line with the measurement of a training
of about that length. The first line that it writes means that it is ready.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from hack.bench.trainer.contenders import Contender, Measured, Setting, make


def main(setting: str) -> None:
    # Output of TensorFlow and Keras must not mix with the responses.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contender = make(Setting(**json.loads(setting)))
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
    main(sys.argv[1])
