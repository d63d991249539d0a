"""`python -m bench.accuracy.child FOLDER NET WIDTH POLICY EPOCHS SEED…`: whole jobs, one after the other.

The result of each is one JSON line on standard output: seed, accuracy on the validation data, seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mptraining_api.launch import WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import RESULT, Result
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.run import run


def main(folder: str, net: str, width: str, policy: str, epochs: str, *seeds: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for seed in map(int, seeds):
        output = Path(folder, f"{net}-{width}-{policy}-{seed}")
        spec = {
            "accelerator": {"type": "cpu"},
            "strategy": "None",
            "precision": {"policy": policy},
            "program": {"function": {"entryPoint": f"bench.accuracy.models:{net}", "arguments": {"width": int(width)}}},
            "data": {"train": [f"{folder}/records/train-*"], "validation": [f"{folder}/records/held-out-*"]},
            "training": {"epochs": int(epochs), "batchSize": {"global": 64}, "seed": seed},
            "checkpoint": {"everySteps": 1_000_000},
            "output": {"uri": str(output)},
        }
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "parity"}, "spec": spec}), ClusterSettings())
        identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="parity")
        began = time.monotonic()
        outcome = run(job, identity, str(output), Preemption(lambda: None), {"MPTRAINING_PROGRESS_SECONDS": "60"})
        if outcome.exit_code:
            sys.exit(f"{net} under {policy}, seed {seed}: {outcome.reason}")
        result = Result.read((output / RESULT).read_bytes())
        line = {"seed": seed, "accuracy": result.metrics["val_accuracy"], "seconds": time.monotonic() - began}
        print(json.dumps(line), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
