"""Checkpoints: complete or absent, and restored under another precision, number of replicas or batch size."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors import SafetensorError

from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import Diverged, ResumeRefused, StorageFull, StorageUnavailable, Superseded
from mptraining_storage import storage, transfers
from mptraining_trainer import fence
from mptraining_trainer.checkpoints import files
from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents, load_newest
from mptraining_trainer.checkpoints.state import CheckpointState, checkpoints
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.report.telemetry import Telemetry
from mptraining_trainer.worker import Worker
from tests.fakes import Notices
from tests.left_out import first_of
from tests.testbed.keras_generations import BOTH_GENERATIONS

SEAT = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="a")
NEXT = SEAT.model_copy(update={"attempt": 2, "incarnation": "b"})


def state(step: int, **fields: Any) -> CheckpointState:
    known = {"epoch": 1, "examples": 64, "fingerprint": "f", "policy": "float32", "replicas": 1}
    return CheckpointState(step=step, attempt=1, incarnation="a", seed=7, **(known | fields))


def worker_of(identity: WorkerIdentity, telemetry: Telemetry, **fields: Any) -> Worker:
    """Return a worker with what a checkpoint needs of it."""
    absent: Any = None
    return Worker(absent, identity, telemetry, absent, "", 1.0, absent, **fields)


class Rig:
    """A model with dropout, its optimizer after one update, and a Checkpointer for them."""

    def __init__(
        self,
        keras: Keras,
        folder: Path | str,
        *,
        units: int = 4,
        layers: int = 1,
        seed: int = 1,
        policy: str = "float32",
        rate: Any = 0.1,
        strategy: Any = None,
        keep: int = 3,
        chief: bool = True,
        identity: WorkerIdentity = SEAT,
        fenced: bool = False,
        optimizer: str = "Adam",
        metrics: Sequence[tuple[str, str]] = (("Mean", "loss"),),
    ) -> None:
        keras.set_seed(seed)
        keras.set_policy(policy)
        self.keras = keras
        self.said = io.StringIO()
        with (strategy or tf.distribute.get_strategy()).scope():
            stack = [keras.module.layers.Dense(units, name=f"hidden_{number}") for number in range(layers)]
            self.model = keras.module.Sequential(
                [keras.module.layers.Input((3,)), *stack, keras.module.layers.Dropout(0.5, seed=3)]
            )
            momentum = {} if optimizer == "Adam" else {"momentum": 0.9}
            self.optimizer = getattr(keras.module.optimizers, optimizer)(rate, **momentum)
            self.metrics = [getattr(keras.module.metrics, kind)(name=name) for kind, name in metrics]
            for metric in self.metrics:
                # tf_keras creates the variables of some metrics with their first update.
                metric.reset_state()
            self.metric = self.metrics[0]
            keras.build_optimizer(self.optimizer, self.model.trainable_variables)
        self.checkpointer = Checkpointer(
            str(folder),
            Contents(keras, self.model, self.optimizer, self.metrics),
            worker_of(
                SEAT if chief else SEAT.model_copy(update={"index": 1}),
                Telemetry(SEAT, None, stream=self.said),
                fence=fence.claim(str(folder), identity) if fenced else None,
            ),
            max_to_keep=keep,
        )

    def train(self) -> Rig:
        gradients = [tf.ones_like(variable) for variable in self.keras.variables_of(self.model.trainable_variables)]
        self.keras.apply_gradients(self.optimizer, gradients, self.model.trainable_variables)
        self.metric.update_state(3.0)
        self.model(tf.ones((1, 3)), training=True)
        return self

    def save(self, step: int, **fields: Any) -> Rig:
        self.checkpointer.save(state(step, **fields))
        self.checkpointer.wait()
        return self

    def arrays(self) -> list[np.ndarray]:
        owners = (self.model, self.optimizer, self.metric)
        return [variable.numpy() for owner in owners for variable in self.keras.variables(owner)]

    def events(self) -> list[Any]:
        return [events.parse(line) for line in self.said.getvalue().splitlines()]


def equal(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@BOTH_GENERATIONS
def test_everything_comes_back(keras: Keras, tmp_path: Path) -> None:
    """Weights, slots, iterations, metrics, and the state of Keras 3's random numbers for dropout."""
    remembered = {"early_stopping": {"best": 0.25, "wait": 2, "history": [1.0, None]}}
    saved = Rig(keras, tmp_path).train().save(500, loss_scale=512.0, good_steps=9, callbacks=remembered)
    fresh = Rig(keras, tmp_path, seed=2)
    assert not equal(saved.arrays(), fresh.arrays())
    found = fresh.checkpointer.restore()
    assert found is not None
    assert (found.step, found.examples, found.loss_scale, found.good_steps) == (500, 64, 512.0, 9)
    assert found.callbacks == remembered
    assert equal(saved.arrays(), fresh.arrays())
    (said,) = saved.events()
    assert (said.kind, said.step, said.uri) == ("Saved", 500, f"{tmp_path}/step-0000000500")
    assert said.bytes == sum(file.stat().st_size for file in Path(said.uri).glob("*.safetensors"))


def test_the_copy_is_taken_when_save_is_called(keras3: Keras, tmp_path: Path) -> None:
    rig = Rig(keras3, tmp_path)
    before = rig.arrays()
    rig.checkpointer.save(state(1))
    rig.train().checkpointer.wait()
    fresh = Rig(keras3, tmp_path, seed=2)
    fresh.checkpointer.restore()
    assert equal(fresh.arrays(), before)


@pytest.mark.parametrize("policies", [("float32", "mixed_float16"), ("mixed_float16", "float32")])
def test_another_precision_reads_it(keras: Keras, tmp_path: Path, policies: tuple[str, str]) -> None:
    saved = Rig(keras, tmp_path, policy=policies[0]).train().save(1)
    fresh = Rig(keras, tmp_path, policy=policies[1], seed=2)
    fresh.checkpointer.restore()
    assert equal(saved.arrays(), fresh.arrays())


def test_another_number_of_replicas_reads_it(keras: Keras, tmp_path: Path) -> None:
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    saved = Rig(keras, tmp_path, strategy=two)
    two.run(lambda: None)
    saved.save(1)
    alone = Rig(keras, tmp_path, seed=2)
    alone.checkpointer.restore()
    assert equal([np.array(one) for one in saved.model.get_weights()], [np.array(o) for o in alone.model.get_weights()])
    again = Rig(keras, tmp_path, seed=3, strategy=two)
    again.checkpointer.restore()
    for variable in keras.variables_of(again.model.trainable_variables):
        first, second = (part.numpy() for part in two.experimental_local_results(variable))
        assert np.array_equal(first, second), "every replica has it"


def test_the_learning_rate_is_the_jobs_to_say(keras: Keras, tmp_path: Path) -> None:
    """A resumed job may have another rate, and another batch size scales it; a schedule may replace it."""
    Rig(keras, tmp_path, rate=0.1).train().save(1)
    lower = Rig(keras, tmp_path, rate=0.01)
    lower.checkpointer.restore()
    assert float(lower.optimizer.learning_rate) == pytest.approx(0.01)
    schedule = keras.module.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    scheduled = Rig(keras, tmp_path, rate=schedule)
    scheduled.checkpointer.restore()
    assert int(scheduled.optimizer.iterations) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["cut off", "another byte", "missing"])
def test_a_torn_newest_falls_back_to_the_one_before(keras3: Keras, tmp_path: Path, name: str, how: str) -> None:
    rig = Rig(keras3, tmp_path).train().save(1)
    good = rig.arrays()
    rig.train().save(2)
    file = tmp_path / "step-0000000002" / name
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-7] if how == "cut off" else bytes([content[0] ^ 0xFF]) + content[1:])
    fresh = Rig(keras3, tmp_path, seed=2)
    found = fresh.checkpointer.restore()
    assert found is not None
    assert found.step == 1
    assert equal(fresh.arrays(), good)
    notices = [(one.level, one.topic) for one in fresh.events()]
    # Without its state a folder is no checkpoint but an unfinished one: no warning.
    unfinished = (name, how) == ("state.json", "missing")
    assert notices == ([] if unfinished else [("Warning", "CheckpointDamaged")])


def test_no_whole_checkpoint_is_refused_not_ignored(keras3: Keras, tmp_path: Path) -> None:
    Rig(keras3, tmp_path).save(1)
    (tmp_path / "step-0000000001" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ResumeRefused, match=r"step-0000000001: no checkpoint .* is whole\. .*resume: Never"):
        Rig(keras3, tmp_path).checkpointer.restore()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"units": 5}, r"shape \[3, 4\] where this model's '.*hidden_0/kernel.*' has \[3, 5\]"),
        ({"layers": 2}, "variables where this model has|hidden_1/kernel"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(
    keras: Keras, tmp_path: Path, other: dict[str, int], message: str
) -> None:
    Rig(keras, tmp_path).save(1)
    with pytest.raises(ResumeRefused, match=rf"a checkpoint of another model: .*({message}).* Give another output"):
        Rig(keras, tmp_path, **other).checkpointer.restore()


@pytest.mark.parametrize(("before", "after"), [("Adam", "SGD"), ("SGD", "RMSprop")], ids=["shapes", "same shapes"])
def test_a_checkpoint_of_another_optimizer_is_refused(keras: Keras, tmp_path: Path, before: str, after: str) -> None:
    """With slots of the same shapes, the momentum of SGD would become the mean of squares of RMSprop."""
    Rig(keras, tmp_path, optimizer=before).train().save(1)
    with pytest.raises(ResumeRefused, match=r"a checkpoint of another optimizer: .*(SGD|variables)"):
        Rig(keras, tmp_path, optimizer=after, seed=2).checkpointer.restore()


@pytest.mark.parametrize(
    "metrics",
    [
        (("Mean", "loss"), ("AUC", "auc")),
        (("AUC", "auc"), ("Mean", "loss")),
        (("Mean", "error"),),
        (("Sum", "loss"),),
        (("MeanSquaredError", "loss"),),
    ],
    ids=["added", "added before", "renamed", "of another shape", "of the same shape"],
)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "the other way"])
def test_other_metrics_are_reset_and_training_resumes(
    keras: Keras, tmp_path: Path, metrics: Sequence[tuple[str, str]], reverse: bool
) -> None:
    before, after = (metrics, (("Mean", "loss"),)) if reverse else ((("Mean", "loss"),), metrics)
    saved = Rig(keras, tmp_path, metrics=before)
    saved.train().save(7, loss_steps=3.0) if not reverse else saved.save(7, loss_steps=3.0)
    fresh = Rig(keras, tmp_path, metrics=after, seed=2)
    initial = [variable.numpy() for metric in fresh.metrics for variable in keras.variables(metric)]
    found = fresh.checkpointer.restore()
    assert found is not None
    assert (found.step, found.loss_steps) == (7, 0.0), "the loss's mean begins again with its sum"
    assert equal([np.array(one) for one in saved.model.get_weights()], [np.array(o) for o in fresh.model.get_weights()])
    assert int(fresh.optimizer.iterations) == int(saved.optimizer.iterations)
    assert equal([variable.numpy() for metric in fresh.metrics for variable in keras.variables(metric)], initial)
    (notice,) = fresh.events()
    assert (notice.topic, notice.level) == ("MetricsReset", "Warning")


@pytest.mark.parametrize("keep", [1, 3])
def test_the_future_that_a_resume_abandons_is_deleted_by_the_next_save(
    keras3: Keras, tmp_path: Path, keep: int
) -> None:
    """Only whole checkpoints count among those that are kept."""
    rig = Rig(keras3, tmp_path, keep=5).train().save(100)
    rig.train().save(200)
    rig.train().save(300)
    rig.train().save(400)
    for step in (300, 400):
        (tmp_path / f"step-0000000{step}" / "model.safetensors").write_bytes(b"damaged")
    resumed = Rig(keras3, tmp_path, keep=keep, seed=2)
    assert resumed.checkpointer.restore() is not None
    # Later than one and earlier than the other of the abandoned checkpoints.
    resumed.train().save(350)
    steps = [int(uri[-3:]) for uri in checkpoints(str(tmp_path))]
    assert steps == [100, 200, 350][-keep:]
    third = Rig(keras3, tmp_path, keep=keep, seed=3)
    found = third.checkpointer.restore()
    assert found is not None
    assert found.step == 350
    assert equal(third.arrays(), resumed.arrays())


def test_state_and_arrays_are_of_the_same_step(keras3: Keras, tmp_path: Path) -> None:
    rig = Rig(keras3, tmp_path).train().save(1, policy="mixed_float16")
    weights = rig.arrays()[: len(rig.model.variables)]
    rig.train().save(2, policy="float32")
    (tmp_path / "step-0000000002" / "model.safetensors").write_bytes(b"damaged")
    loaded = load_newest(str(tmp_path), Notices())
    assert loaded is not None
    assert (loaded.state.step, loaded.state.policy) == (1, "mixed_float16")
    assert equal(loaded.arrays["model"], weights)


class Test_a_bucket_that_does_not_answer:
    """A real server behind a port that refuses connections until it is opened."""

    def test_does_not_hold_training_up_and_gets_the_newest_checkpoint(
        self, keras3: Keras, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = f"{bucket}/run/checkpoints"
        rig = Rig(keras3, folder).train().save(1)
        with socket.socket() as closed, monkeypatch.context() as away:
            closed.bind(("127.0.0.1", 0))
            away.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
            away.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
            for step in (2, 3, 4):
                rig.train().checkpointer.save(state(step))
                while not any(event.kind == "Notice" for event in rig.events()):
                    threading.Event().wait(0.02)
        rig.checkpointer.wait()
        assert [int(uri[-1]) for uri in checkpoints(folder)] == [1, 4]
        fresh = Rig(keras3, folder, seed=2)
        assert fresh.checkpointer.restore() is not None
        assert equal(fresh.arrays(), rig.arrays())
        assert "CheckpointDelayed" in {event.topic for event in rig.events() if event.kind == "Notice"}

    def test_is_an_error_of_the_end_alone(self, keras3: Keras, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig(keras3, f"{bucket}/run/checkpoints")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
            monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
            for step in (1, 2):
                rig.checkpointer.save(state(step))
            with pytest.raises(StorageUnavailable, match="cannot be reached"):
                rig.checkpointer.wait()


def test_only_the_last_ones_are_kept(keras3: Keras, tmp_path: Path) -> None:
    rig = Rig(keras3, tmp_path, keep=2)
    for step in (1, 2, 9, 10, 11):
        rig.save(step)
    assert [Path(uri).name for uri in checkpoints(str(tmp_path))] == ["step-0000000010", "step-0000000011"]
    kept = {path.parent.name for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"step-0000000010", "step-0000000011"}, "nothing is left of the others"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_never_published(keras: Keras, tmp_path: Path, value: float) -> None:
    rig = Rig(keras, tmp_path).save(1)
    variable = keras.variables_of(rig.model.trainable_variables)[0]
    variable.assign(tf.fill(variable.shape, value))
    with pytest.raises(Diverged, match="step 2: the weights are no longer finite numbers"):
        rig.save(2)
    assert [Path(uri).name for uri in checkpoints(str(tmp_path))] == ["step-0000000001"]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any) -> None:
        # safetensors 0.8 on a tmpfs of 1 MiB.
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(files, "save_file", save)
    with pytest.raises(StorageFull, match=r"model\.safetensors: the disk is full\. Enlarge the volume"):
        files.write(tmp_path, {"model": {"kernel": np.zeros(3, "float32")}})


def test_only_the_chief_writes(keras3: Keras, tmp_path: Path) -> None:
    rig = Rig(keras3, tmp_path, chief=False).save(1)
    assert (list(tmp_path.iterdir()), rig.events()) == ([], [])


def test_a_state_of_a_newer_version_is_read(keras3: Keras, tmp_path: Path) -> None:
    Rig(keras3, tmp_path).save(1)
    file = tmp_path / "step-0000000001" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2, "news": True}))
    found = Rig(keras3, tmp_path, seed=2).checkpointer.restore()
    assert found is not None
    assert found.version == 2


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest) -> str:
    if request.param == "disk":
        return f"{request.getfixturevalue('tmp_path')}/checkpoints"
    return f"{request.getfixturevalue('bucket')}/run/checkpoints"


class Test_an_older_attempt_that_still_runs:
    def test_publishes_no_further_files(self, keras3: Keras, folder: str) -> None:
        older = Rig(keras3, folder, fenced=True).train().save(1)
        Rig(keras3, folder, identity=NEXT, fenced=True)
        with pytest.raises(Superseded, match="attempt 2 has taken over"):
            older.train().save(2)
        assert [uri[-1] for uri in checkpoints(folder)] == ["1"]

    def test_cannot_replace_a_file_when_its_upload_comes_through_late(
        self, keras3: Keras, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The newer attempt claims, trains and saves the same step while the older one's upload hangs."""
        older, newer = Rig(keras3, folder, fenced=True), []
        upload = transfers.upload

        def late(*arguments: Any, **named: Any) -> Any:
            if not newer:
                newer.append(Rig(keras3, folder, seed=2, identity=NEXT, fenced=True))
                newer[0].train().save(7)
            return upload(*arguments, **named)

        monkeypatch.setattr(transfers, "upload", late)
        with pytest.raises(Superseded):
            older.save(7)
        found = Rig(keras3, folder, seed=3)
        assert found.checkpointer.restore() is not None
        assert equal(found.arrays(), newer[0].arrays())

    def test_does_not_keep_the_newer_from_saving_the_same_step(self, keras3: Keras, folder: str) -> None:
        Rig(keras3, folder, fenced=True).train().save(7)
        newer = Rig(keras3, folder, seed=2, identity=NEXT, fenced=True).train().save(7)
        found = Rig(keras3, folder, seed=3)
        assert found.checkpointer.restore() is not None
        assert equal(found.arrays(), newer.arrays())
        assert [each.name for each in storage.list_objects(folder)] == [
            "fence.json",
            "metrics.safetensors",
            "model.safetensors",
            "optimizer.safetensors",
            "random.safetensors",
            "state.json",
        ]


# Saves checkpoints of 4 MB in a loop, until it is killed.
ENDLESS = """
import itertools, sys
from mptraining_api.launch import WorkerIdentity
from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents
from mptraining_trainer.checkpoints.state import CheckpointState
from mptraining_trainer.keras_backend import load
from mptraining_trainer.report.telemetry import Telemetry
from mptraining_trainer.worker import Worker
keras = load("Keras3")
model = keras.module.Sequential([keras.module.layers.Input((1000,)), keras.module.layers.Dense(1000)])
optimizer = keras.module.optimizers.SGD()
keras.build_optimizer(optimizer, model.trainable_variables)
seat = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="a")
worker = Worker(None, seat, Telemetry(seat, None), None, "", 1.0, None)
checkpointer = Checkpointer(sys.argv[1], Contents(keras, model, optimizer, []), worker, max_to_keep=2)
for step in itertools.count(1):
    checkpointer.save(CheckpointState(step=step, attempt=1, incarnation="a", seed=0, epoch=0, examples=0,
                                      fingerprint="", policy="float32", replicas=1))
    checkpointer.wait()
"""


@pytest.mark.parametrize(("folder", "saves"), first_of(("disk", 3), ("bucket", 8)), indirect=["folder"])
def test_killed_in_mid_write_only_whole_checkpoints_are_seen(keras3: Keras, folder: str, saves: int) -> None:
    """The kill happens during a write or a pruning: the process does nothing else."""
    command = [sys.executable, "-c", ENDLESS, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ) as process:
        assert process.stdout is not None
        for _ in range(saves):
            assert b"Saved" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    seen = checkpoints(folder)
    assert seen
    for uri in seen:
        stored = CheckpointState.read(storage.read(f"{uri}/state.json"))
        for name, file in stored.files.items():
            assert storage.stat(f"{uri}/{name}").size == file.bytes
    assert int(seen[-1][-10:]) >= saves


def test_large_files_go_in_parts_and_come_back_as_one(
    keras3: Keras, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 100)
    saved = Rig(keras3, tmp_path, units=8, layers=3).train().save(3)
    names = {path.name for path in (tmp_path / "step-0000000003").iterdir()}
    assert {"model.safetensors", "model-part-1.safetensors", "model-part-2.safetensors", "state.json"} <= names
    fresh = Rig(keras3, tmp_path, units=8, layers=3, seed=2)
    assert fresh.checkpointer.restore() is not None
    assert equal(saved.arrays(), fresh.arrays())
    (tmp_path / "step-0000000003" / "model-part-2.safetensors").unlink()
    with pytest.raises(ResumeRefused, match="no checkpoint of this run is whole"):
        fresh.checkpointer.restore()


def test_parts_are_no_larger_than_they_may_be() -> None:
    arrays = {"model": {f"{number:05d}": np.zeros(size, np.uint8) for number, size in enumerate((3, 9, 4, 4, 3, 24))}}
    parts = files.split_into_parts(arrays | {"random": {}}, limit=10)
    sizes = {name: [array.nbytes for array in part.values()] for name, part in parts.items()}
    assert sizes == {
        "model": [3],
        "model-part-1": [9],
        "model-part-2": [4, 4],
        "model-part-3": [3],
        "model-part-4": [10],
        "model-part-5": [10],
        "model-part-6": [4],
        "random": [],
    }


@pytest.mark.parametrize("shape", [(), (1, 50), (7, 3), (1000,), (5, 1, 4), (0, 4)])
def test_a_tensor_that_was_cut_is_whole_again(shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(1)
    arrays = [numbers.normal(size=each).astype(np.float32) for each in ((3,), shape, (2, 2))]
    parts = files.split_into_parts({"model": {f"{number:05d} x": each for number, each in enumerate(arrays)}}, 20)
    tensors = {key: array for part in parts.values() for key, array in part.items()}
    assert all(np.array_equal(*pair) for pair in zip(arrays, files.join_parts(tensors), strict=True))
    assert all(each.nbytes <= 20 or len(each) == 1 for part in parts.values() for each in part.values())


def test_files_of_a_killed_writer_are_deleted(keras3: Keras, tmp_path: Path) -> None:
    left = tmp_path / ".unfinished-abc"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    rig = Rig(keras3, tmp_path).train()
    assert checkpoints(str(tmp_path)) == []
    rig.save(1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]
