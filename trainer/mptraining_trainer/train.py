"""One worker's run from job file to model, in labelled sections; read this to follow a job.

The decisions stand elsewhere: what runs where in `runtime`, which examples in `batching` and `input`, what is trained
in `program`, how precisely in `measure` and `recovery`, a step in `loop`, how many at once in `pace`, what happens
between them in `course`. Here they only meet.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from dataclasses import replace

import tensorflow as tf

from mptraining_api import run_folder
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.problems import InvalidData
from mptraining_records.storage import storage
from mptraining_trainer.checkpoints.claim import claim_folder
from mptraining_trainer.checkpoints.provenance import origin
from mptraining_trainer.checkpoints.state import newest_state, resumed
from mptraining_trainer.cpu import native_bfloat16
from mptraining_trainer.data.batching import Batching, Share
from mptraining_trainer.data.dataset import open_splits
from mptraining_trainer.distribution.coordination import wait_for_peers
from mptraining_trainer.distribution.strategy import make_strategy
from mptraining_trainer.keras_backend import load
from mptraining_trainer.numerics.recovery import Numbers, policies
from mptraining_trainer.scripts.run_script import train_script
from mptraining_trainer.session import run_session
from mptraining_trainer.training.build import Assembled, Ground, assemble
from mptraining_trainer.training.hooks import hooks_of
from mptraining_trainer.training.policy_trials import measured
from mptraining_trainer.training_result import Trained
from mptraining_trainer.worker import Worker


def train(worker: Worker, environment: MutableMapping[str, str]) -> Trained:
    """Trains the job to its end on this worker. Raises Problem for everything a user is told about."""
    job, telemetry = worker.job, worker.telemetry

    if job.processes > 1:
        wait_for_peers(
            worker.seat,
            now=telemetry.now,
            wait=worker.preemption.wait,
            notice=telemetry.notice,
            # A script's own strategy opens the port late, or never.
            until_reached=job.strategy == "None",
        )

    # Devices before anything else of TensorFlow, then numbers and seeds before anything of Keras.
    strategy = make_strategy(job, worker.seat, environment)
    keras = load(job.keras)
    if source := environment.get(SOURCE_FOLDER):
        sys.path.insert(0, source)
    if job.program.script is not None:
        keras.set_policy(job.precision.policy)
        return train_script(claim_folder(worker), strategy, keras, environment)
    assert job.training is not None
    assert job.data is not None
    assert job.global_batch_size is not None
    keras.set_seed(job.training.seed)

    # Data
    share = Share(worker.seat.index, job.processes)
    opened = open_splits(worker, share)
    accumulation = job.training.gradient_accumulation_steps
    batching = Batching(opened.training.count, job.global_batch_size * accumulation, job.data.remainder)
    if batching.steps_per_pass == 0:
        raise InvalidData(
            "spec.training.batchSize",
            f"{batching.examples_per_step} examples a step, {opened.training.count} in the training data: zero steps",
            next_step="Lower the batch size, or set data.remainder: PadAndMask.",
        )
    versions = {"tensorflow": tf.__version__, "keras": keras.version}
    came_of = origin(job, environment.get(SOURCE_FOLDER), versions=versions)
    ground = Ground(job, strategy, keras, opened, share, batching, came_of, telemetry.notice)

    # Numbers: what an earlier attempt found out, what the device is fastest with, or what the job says.
    available = policies(job, native_bfloat16=native_bfloat16())
    kept = storage.join(worker.folder, run_folder.CHECKPOINTS)
    kept_state = None if job.training.resume == "Never" else newest_state(kept)
    numbers = resumed(job, kept_state, fingerprint=opened.training.dataset.fingerprint)
    if numbers is None and job.precision.policy == "Measure":
        numbers = measured(ground, available, telemetry)
    numbers = numbers or Numbers(asked=job.precision.policy, policy=job.precision.policy)
    built, numbers = _built(ground, numbers)
    hooks = hooks_of(worker, built)
    # Claimed only now, so that a job that was refused may be mended and started again in the same folder.
    worker = claim_folder(worker)

    # Training; whenever numbers stop being finite, again from the last checkpoint on, with everything built anew.
    back, spent = None, 0.0
    while True:
        ended = run_session(worker, built, hooks, numbers, available, back, spent)
        if isinstance(ended, Trained):
            return ended
        del built, hooks
        numbers, back, spent = ended.numbers, ended, ended.seconds
        built, numbers = _built(ground, numbers)
        hooks = hooks_of(worker, built)


def _built(ground: Ground, numbers: Numbers) -> tuple[Assembled, Numbers]:
    """Everything under these numbers, and the numbers with the policy that the model could be built under."""
    excluded = frozenset(each.record for each in numbers.excluded)
    built = assemble(replace(ground, excluded=excluded), numbers.policy, checked=numbers.checked)
    return built, replace(numbers, policy=built.job.precision.policy)
