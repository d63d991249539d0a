"""A program trained by this trainer, in this process: the real `train`, with two replacements.

The devices are replaced, because a process has one set of them and one strategy of each kind; and the upload of the
exported model, because the weights that would be exported are kept instead.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

import mptraining_trainer.train as trainer_train
from hack.parity.programs.program import WEIGHT, Program
from hack.parity.programs.source import CLASS_WEIGHT, SEED
from hack.parity.training.environment import Arrays, Numbers, features_of, labels_of, one_line, records_of
from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import Problem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.export.export import Snapshot
from mptraining_trainer.report.telemetry import Telemetry
from mptraining_trainer.worker import Worker

DEVICES = 4

_strategies: dict[tuple[str, int], Any] = {}
_published: list[Any] = []


def _strategy(job: ResolvedJob, identity: WorkerIdentity, environment: Any) -> Any:
    """One strategy of each kind in a process: TensorFlow numbers the collectives of each from the same base."""
    kind = (job.strategy, job.replicas)
    if kind not in _strategies:
        if job.strategy == "None":
            _strategies[kind] = tf.distribute.get_strategy()
        elif job.strategy == "Mirrored":
            _strategies[kind] = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(job.replicas)])
        else:
            _strategies[kind] = _make_strategy(job, identity, environment)
    return _strategies[kind]


def _keep(*arguments: Any, **named: Any) -> str:
    _published.extend(given.weights for given in (*arguments, *named.values()) if isinstance(given, Snapshot))
    return "model"


_make_strategy: Callable[..., Any] = vars(trainer_train)["make_strategy"]
_bases = iter(range(10_000, 1 << 30, 10_000))


def prepare() -> None:
    """Set up a process that is not one of several workers; call it once, before TensorFlow is used."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    replace_edges()
    make = tf.distribute.MirroredStrategy.__init__

    def numbered(self: Any, *arguments: Any, **named: Any) -> None:
        self._collective_key_base = next(_bases)
        make(self, *arguments, **named)

    tf.distribute.MirroredStrategy.__init__ = numbered


def replace_edges() -> None:
    """Replace devices and upload, see the module."""
    vars(trainer_train)["make_strategy"] = _strategy
    vars(trainer_train)["publish"] = _keep


def job_of(
    program: Program,
    arrays: Arrays,
    validation: Arrays | None,
    records: Path,
    output: str,
    *,
    replicas: int,
    workers: int,
) -> ResolvedJob:
    """Return the program as a job. Raises InvalidSpec."""
    names = labels_of(arrays)
    accelerator: dict[str, Any] = {"type": "cpu"}
    if replicas > 1:
        accelerator["countPerWorker"] = replicas
    data: dict[str, Any] = {
        "train": [records_of(arrays, records)],
        "features": features_of(arrays),
        "shuffle": {"bufferSize": 0},
        "remainder": program.remainder,
    }
    data |= {"label": names[0]} if len(names) == 1 else {"labels": names}
    if validation is not None:
        data["validation"] = [records_of(validation, records)]
    if WEIGHT in arrays:
        data["sampleWeight"] = WEIGHT
    training: dict[str, Any] = {
        "epochs": program.epochs,
        "batchSize": {"global": program.batch},
        "seed": SEED,
        "gradientAccumulationSteps": program.accumulation,
        "stepsPerExecution": program.steps_per_execution,
    }
    if program.class_weight:
        training["classWeight"] = {str(number): weight for number, weight in CLASS_WEIGHT.items()}
    if program.initial_epoch:
        training["initialEpoch"] = program.initial_epoch
    if program.validation == "second":
        training["validationFreq"] = 2
    spec: dict[str, Any] = {
        "accelerator": accelerator,
        "keras": program.generation,
        "precision": {"policy": program.policy},
        "program": {"function": {"entryPoint": f"parity_{program.key}:build"}},
        "data": data,
        "training": training,
        "checkpoint": {"everySteps": 1_000_000},
        "output": {"uri": output},
    }
    if workers > 1:
        spec["workers"] = workers
    elif replicas == 1:
        spec["strategy"] = program.strategy
    return resolve(MPTrainingJob.parse({"metadata": {"name": "parity"}, "spec": spec}), ClusterSettings())


def train(
    program: Program,
    module: ModuleType,
    arrays: Arrays,
    validation: Arrays | None,
    *,
    records: Path,
    replicas: int,
    identity: WorkerIdentity | None = None,
    output: str | None = None,
) -> Numbers:
    """Train it as a job; `identity` is this worker's if there are several, which share the folder `output`."""
    began = time.monotonic()
    reported: list[Any] = []
    _published.clear()
    workers = len(identity.hosts) if identity else 1
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch, ExitStack() as ends:
        folder = output or scratch
        try:
            job = job_of(program, arrays, validation, records, folder, replicas=replicas, workers=workers)
            identity = identity or WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="parity")
            telemetry = Telemetry(identity, None, stream=io.StringIO())
            telemetry.listeners.append(reported.append)
            worker = Worker(job, identity, telemetry, Preemption(lambda: None), folder, 0.0, ends)
            # TensorFlow finds the other workers by TF_CONFIG, which the trainer sets.
            trainer_train.train(worker, os.environ if workers > 1 else {})
        except Exception as error:  # noqa: BLE001 - any program may fail in any way
            started = any(isinstance(event, events.Started) for event in reported)
            text = f"{type(error).__name__}: {one_line(error)}"
            seconds = time.monotonic() - began
            if isinstance(error, Problem) and not started:
                return Numbers(refused=text, seconds=seconds)
            return Numbers(failed=text + ("" if started else " (before training)"), seconds=seconds)
        finally:
            module.keras.mixed_precision.set_global_policy("float32")
            sys.stdout.flush()
    begun = next(event for event in reported if isinstance(event, events.Started))
    if begun.replicas_in_sync != replicas * workers:
        return Numbers(failed=f"{begun.replicas_in_sync} replicas, expected {replicas * workers}")
    weights = tuple(_published[-1]) if _published else ()
    reports = [event for event in reported if isinstance(event, events.Progress)]
    by_epoch = {event.epoch: event.metrics for event in reports}
    skipped = any(event.skipped_steps for event in reports)
    return Numbers(weights, tuple(by_epoch[epoch] for epoch in sorted(by_epoch)), skipped, time.monotonic() - began)
