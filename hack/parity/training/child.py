"""A process that trains programs by plain `fit`, on one and on two replicas, or as one of two workers, and compares.

One generation of Keras in a process, since TF_USE_LEGACY_KERAS holds for all of it.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import resource
import shutil
import time
from collections.abc import Sequence
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
        began = time.monotonic()
        verdicts, reference = attempt(program, folder)
        if not frozen:
            # TensorFlow's and Keras' half million objects are permanent: without this each program's garbage collection
            # scans them.
            gc.freeze()
            frozen = True
        if program.workers:
            keep_reference(folder, program.key, reference)
        answer: dict[str, Any] = {
            "compared": [compared.to_document() for compared in verdicts],
            "seconds": round(time.monotonic() - began, 2),
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


def serve_worker(pipe: Connection, folder: Path, index: int, hosts: Sequence[str]) -> None:
    """Respond, as one of two workers, with how each program ended; worker 0 with its comparison.

    The reference is the one that `serve` has kept.
    """
    import mptraining_trainer.train as trainer_train
    from hack.parity.comparison.bounds import WORKERS
    from hack.parity.comparison.compare import compare
    from hack.parity.training import trainer_run
    from hack.parity.training.environment import Numbers, arrays_of, module_of
    from mptraining_api.launch import WorkerIdentity

    trainer_run.replace_edges()
    for number in itertools.count():
        program = pipe.recv()
        identity = WorkerIdentity(index=index, hosts=tuple(hosts), attempt=1, incarnation="parity")
        output = folder / "runs" / f"{program.generation}-{program.key}"
        if identity.is_chief:
            shutil.rmtree(output, ignore_errors=True)
        if number:
            # TensorFlow has the ports now, and both workers have started.
            vars(trainer_train)["wait_for_peers"] = lambda *_, **__: None
        with module_of(program, folder / f"programs-{index}") as module:
            arrays, validation = arrays_of(program, module)
            ours = trainer_run.train(
                program,
                module,
                arrays,
                validation,
                records=folder / "records",
                replicas=1,
                identity=identity,
                output=str(output),
            )
        answer: dict[str, Any] = {"failed": ours.failed, "refused": ours.refused}
        if identity.is_chief:
            reference = reference_of(folder, program.key) or Numbers(failed="no reference")
            answer["compared"] = [compare(program, WORKERS, reference, ours).to_document()]
        pipe.send(answer)
