"""`python -m hack.parity.training.worker GENERATION FOLDER INDEX HOST:PORT HOST:PORT`: one of two workers.

It reads and responds as `child` does; worker 0 compares with the reference that a child has kept.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from hack.parity.training.child import open_answers, reference_of


def main(generation: str, folder: str, index: str, *hosts: str) -> None:
    answers = open_answers(generation)
    import mptraining_trainer.train as trainer_train
    from hack.parity.comparison.bounds import WORKERS
    from hack.parity.comparison.compare import compare
    from hack.parity.programs.program import Program
    from hack.parity.training import trainer_run
    from hack.parity.training.environment import Numbers, arrays_of, module_of
    from mptraining_api.launch import WorkerIdentity

    trainer_run.replace_edges()
    for number, line in enumerate(sys.stdin):
        program = Program.from_json(line)
        identity = WorkerIdentity(index=int(index), hosts=hosts, attempt=1, incarnation="parity")
        output = Path(folder, "runs", f"{generation}-{program.key}")
        if identity.is_chief:
            shutil.rmtree(output, ignore_errors=True)
        if number:
            # TensorFlow has the ports now, and both workers have started.
            vars(trainer_train)["wait_for_peers"] = lambda *_, **__: None
        with module_of(program, Path(folder, f"programs-{index}")) as module:
            arrays, validation = arrays_of(program, module)
            ours = trainer_run.train(
                program,
                module,
                arrays,
                validation,
                records=Path(folder, "records"),
                replicas=1,
                identity=identity,
                output=str(output),
            )
        answer: dict[str, Any] = {"key": program.key, "failed": ours.failed, "refused": ours.refused}
        if identity.is_chief:
            reference = reference_of(Path(folder), program.key) or Numbers(failed="no reference")
            answer["compared"] = [compare(program, WORKERS, reference, ours).to_document()]
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
