"""No worker exits before the chief has finished."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from mptraining_api.launch import WorkerIdentity
from mptraining_trainer.devices.coordination import exit_barrier
from tests.testbed.processes import free_ports

WORKER = """
import sys, time
import tensorflow as tf
from mptraining_api.launch import WorkerIdentity
from mptraining_trainer.devices import coordination
from mptraining_trainer.devices.coordination import exit_barrier

coordination._EXIT_TIMEOUT = 100.0
strategy = tf.distribute.MultiWorkerMirroredStrategy()
identity = WorkerIdentity(index=int(sys.argv[1]), hosts=("a:1", "b:1"), attempt=1, incarnation="a")
time.sleep(2.0 if identity.is_chief else 0.0)
before = time.time()
exit_barrier(identity)
print(before, time.time(), flush=True)
time.sleep(0.0 if not identity.is_chief else 0.5)
"""


def test_the_others_wait_for_the_chief() -> None:
    ports = [f"localhost:{port}" for port in free_ports(2)]
    workers = []
    for index in range(2):
        config = json.dumps({"cluster": {"worker": ports}, "task": {"type": "worker", "index": index}})
        environment = os.environ | {"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", WORKER, str(index)]
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said = [worker.communicate(timeout=600)[0].splitlines()[-1] for worker in workers]
    (chief_parts, _), (_, other_left) = (map(float, line.split()) for line in said)
    assert chief_parts <= other_left < chief_parts + 50.0, "neither before nor by the timeout"


def test_one_worker_does_not_wait() -> None:
    exit_barrier(WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="a"))
