"""One of two workers; worker 0 compares with the reference that a child has kept."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hack.parity.training.child import reference_of


def serve(pipe: Connection, folder: Path, index: int, hosts: Sequence[str]) -> None:
    """Respond to each program with how it ended, and worker 0 with its comparison."""
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
