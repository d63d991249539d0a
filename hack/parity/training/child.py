"""A process that trains programs by plain `fit`, on one and on two replicas, and compares.

One generation of Keras in a process, since TF_USE_LEGACY_KERAS holds for all of it.
"""

from __future__ import annotations

import gc
import pickle
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def serve(pipe: Connection, folder: Path) -> None:
    """Respond to each program with its comparisons, the seconds, and this process's memory."""
    from hack.parity.comparison.trial import attempt
    from hack.parity.training import trainer_run

    trainer_run.prepare()
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    import absl.logging

    absl.logging.set_verbosity(absl.logging.ERROR)
    frozen = False
    while True:
        program = pipe.recv()
        tried = attempt(program, folder)
        if not frozen:
            # TensorFlow's and Keras' half million objects are permanent: without this each program's garbage collection
            # scans them.
            gc.freeze()
            frozen = True
        if program.workers:
            keep_reference(folder, program.key, tried.reference)
        answer: dict[str, Any] = {
            "compared": [one.to_document() for one in tried.compared],
            "seconds": round(tried.seconds, 2),
            "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        pipe.send(answer)


def keep_reference(folder: Path, key: str, reference: Any) -> None:
    """Keep the result of plain `fit` for the program's two workers."""
    file = folder / "references" / f"{key}.pickle"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(reference))


def reference_of(folder: Path, key: str) -> Any:
    """Return the result that `keep_reference` kept, or None."""
    file = folder / "references" / f"{key}.pickle"
    return pickle.loads(file.read_bytes()) if file.exists() else None
