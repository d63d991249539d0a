"""`python -m hack.parity.training.child GENERATION FOLDER`: trains the programs on standard input, one a line.

The response to each is one JSON line: key, comparisons, seconds, memory. One generation of Keras in a process, since
TF_USE_LEGACY_KERAS holds for all of it.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

# Above this many bytes a process has to end: TensorFlow keeps graphs of programs that no longer exist.
LARGEST = 3 << 30


def quiet(generation: str) -> None:
    """Reduce TensorFlow's output and threads; call it before TensorFlow is imported."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # Two processes share two cores: threads that wait for each other take a tenth of the time.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    if generation == "Legacy":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"


def open_answers(generation: str) -> TextIO:
    """Return the standard output for responses; other output, and warnings, are dropped."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    quiet(generation)
    warnings.simplefilter("ignore")
    return answers


def main(generation: str, folder: str) -> None:
    answers = open_answers(generation)
    from hack.parity.comparison.trial import attempt
    from hack.parity.programs.program import Program
    from hack.parity.training import trainer_run

    trainer_run.prepare()
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    import absl.logging

    absl.logging.set_verbosity(absl.logging.ERROR)
    for number, line in enumerate(sys.stdin):
        program = Program.from_json(line)
        tried = attempt(program, Path(folder))
        if number == 0:
            # TensorFlow's and Keras' half million objects are permanent: without this each program's garbage collection
            # scans them.
            gc.freeze()
        if program.workers:
            keep_reference(Path(folder), program.key, tried.reference)
        answer: dict[str, Any] = {
            "key": program.key,
            "compared": [one.to_document() for one in tried.compared],
            "seconds": round(tried.seconds, 2),
            "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(answer), file=answers)


def keep_reference(folder: Path, key: str, reference: Any) -> None:
    """Keep the result of plain `fit` for the program's two workers."""
    file = folder / "references" / f"{key}.pickle"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(replace(reference)))


def reference_of(folder: Path, key: str) -> Any:
    """Return the result that `keep_reference` kept, or None."""
    file = folder / "references" / f"{key}.pickle"
    return pickle.loads(file.read_bytes()) if file.exists() else None


if __name__ == "__main__":
    main(*sys.argv[1:])
