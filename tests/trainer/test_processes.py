"""Trainer processes as a cluster starts them: workers, signals, exit codes, and the content of the run folder."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events
from mptraining_api.launch import (
    ATTEMPT,
    FETCHED_COMMAND,
    INCARNATION,
    INDEX,
    MODEL_WAITS,
    PROGRESS_SECONDS,
    SEND_COMMAND,
    SOURCE_FOLDER,
    TERMINATION_LOG,
    launch,
)
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from tests.soak.kill_and_resume.forks import Fork, Forks
from tests.testbed.processes import free_ports

pytestmark = pytest.mark.training

TWO_REPLICAS = {"accelerator": {"type": "cpu", "countPerNode": 2}}
TWO_WORKERS = {"accelerator": {"type": "cpu"}, "nodes": 2}
ENDLESS = {"epochs": None, "totalSteps": 1_000_000, "stepsPerExecution": 2}
# A start of TensorFlow takes seconds, on a busy machine tens of them.
PATIENCE = 400.0


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scikit-learn's handwritten digits: 1,437 to train on, 360 to validate."""
    folder = tmp_path_factory.mktemp("digits")
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.round(found.images / 16 * 255).astype(np.uint8)[..., np.newaxis]
    order = np.random.default_rng(7).permutation(len(images))
    for name, rows in (("train", order[:1437]), ("validation", order[1437:])):
        np.savez(folder / f"{name}.npz", image=images[rows], label=found.target[rows].astype(np.int64))
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    return folder


@dataclass
class Attempt:
    """The processes of one attempt and their output."""

    folder: Path
    processes: list[subprocess.Popen[bytes] | Fork]
    outputs: list[Path]

    def events(self, worker: int = 0) -> list[Any]:
        # A line that is still being written does not count.
        lines = self.outputs[worker].read_text().splitlines()
        return [event for event in map(events.parse, lines) if event is not None]

    def all(self, kind: type[Any], worker: int = 0) -> list[Any]:
        return [event for event in self.events(worker) if isinstance(event, kind)]

    def until(self, step: int, worker: int = 0) -> None:
        """Wait for Progress past that step."""
        end = time.monotonic() + PATIENCE
        while not any(event.step >= step for event in self.all(events.Progress, worker)):
            assert self.processes[worker].poll() is None, self.errors(worker)
            assert time.monotonic() < end, "no progress"
            time.sleep(0.05)

    def wait(self, seconds: float = PATIENCE) -> list[int]:
        """Return the exit codes; all must have exited within that time."""
        end = time.monotonic() + seconds
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def errors(self, worker: int = 0) -> str:
        return self.outputs[worker].with_suffix(".err").read_text()

    def finished(self, worker: int = 0) -> events.Finished:
        last = self.events(worker)[-1]
        assert isinstance(last, events.Finished)
        return last

    def metrics(self) -> dict[str, float]:
        return self.finished().metrics

    def weights(self) -> list[np.ndarray]:
        with np.load(self.folder / "model" / "weights.npz") as stored:
            return [stored[name] for name in sorted(stored)]


Start = Callable[..., Attempt]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.fixture
def start(digits: Path, tmp_path: Path, forks: Forks) -> Iterator[Start]:
    """Starts the processes of one attempt; all end with the test.

    They are forked from a process that has imported TensorFlow. With `real`, and for scripts, whose imports depend on
    the environment, they are started as a pod starts them.
    """
    attempts: list[Attempt] = []

    def begin(
        spec: dict[str, Any],
        folder: str = "run",
        source: Path | None = None,
        data: dict[str, Any] | None = None,
        real: bool = False,
        **training: Any,
    ) -> Attempt:
        number = len(attempts) + 1
        document = {"output": {"uri": str(tmp_path / folder)}} | spec
        if "script" not in spec.get("program", {}):
            document.setdefault("program", {"application": {"name": "mlp", "classes": 10}})
            both = {"train": [f"{digits}/train-*.tfrecord"], "validation": [f"{digits}/validation-*.tfrecord"]}
            document["data"] = data or both
            together = {"epochs": 1, "batchSize": {"global": 64}, "seed": 7} | training
            document["training"] = {name: value for name, value in together.items() if value is not None}
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "digits"}, "spec": document}), ClusterSettings())
        hosts = [f"127.0.0.1:{port}" for port in free_ports(job.processes)]
        job_file = tmp_path / f"{number}.json"
        command = (sys.executable, "-m", "mptraining_trainer", "train")
        launched = launch(job, hosts=hosts, job_path=str(job_file), attempt=number, command=command)
        job_file.write_text(launched.job_file)
        environment = {**os.environ, **launched.environment, PROGRESS_SECONDS: "0", INCARNATION: f"i{number}"}
        if source is not None:
            environment[SOURCE_FOLDER] = str(source)
        assert environment[ATTEMPT] == str(number)
        attempt = Attempt(tmp_path / folder, [], [])
        attempts.append(attempt)
        for index in range(job.processes):
            output = tmp_path / f"{number}-{index}.out"
            told = {INDEX: str(index), TERMINATION_LOG: str(output.with_suffix(".last"))}
            output.touch()
            if not real and "script" not in spec.get("program", {}):
                attempt.processes.append(Fork(forks, environment | told, output))
            else:
                with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
                    attempt.processes.append(
                        subprocess.Popen(launched.command, env=environment | told, stdout=stdout, stderr=stderr)
                    )
            attempt.outputs.append(output)
        return attempt

    yield begin
    for attempt in attempts:
        for process in attempt.processes:
            process.kill()
            process.wait(60)


def equal(first: Attempt, second: Attempt, tolerance: float = 0.0) -> bool:
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(first.weights(), second.weights(), strict=True)
    )


def test_digits_on_two_replicas_are_learnt(start: Start) -> None:
    done = start(TWO_REPLICAS, real=True, epochs=20)
    assert done.wait() == [0], done.errors()
    assert done.metrics()["val_accuracy"] >= 0.95
    (started,) = done.all(events.Started)
    assert (started.devices, started.replicas_in_sync) == (("CPU:0", "CPU:1"), 2)
    assert {"model.json", "weights.npz"} <= {path.name for path in (done.folder / "model").iterdir()}
    assert json.loads((done.folder / "result.json").read_text())["reason"] == "Succeeded"
    assert done.errors() == ""
    assert events.parse(done.outputs[0].with_suffix(".last").read_text()) == done.finished()


def test_two_workers_train_what_two_replicas_do(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers connect to each other directly; TensorFlow would use this proxy, which does not exist.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    workers, replicas = start(TWO_WORKERS, "workers", real=True, epochs=2), start(TWO_REPLICAS, "replicas", epochs=2)
    assert (workers.wait(), replicas.wait()) == ([0, 0], [0]), workers.errors()
    assert workers.metrics() == pytest.approx(replicas.metrics(), abs=1e-4)
    assert workers.finished(1).metrics == workers.metrics(), "both know the same"
    assert equal(workers, replicas, 1e-4)
    assert [event.step for event in workers.all(events.Saved)] == [22, 44]
    assert workers.all(events.Saved, worker=1) == []


CALLING = """
import os
import tf_keras as keras

def build():
    layers, c = keras.layers, keras.callbacks
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Rescaling(1 / 255), layers.Dense(8),
                              layers.BatchNormalization(), layers.Dense(10, dtype="float32")])

    def stop(epoch, logs):
        if os.environ["JOB_COMPLETION_INDEX"] == "1" and epoch == 1:
            model.stop_training = True

    return dict(model=model, callbacks=[c.CSVLogger("log.csv"), c.ModelCheckpoint("kept.keras"),
                                        c.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
                                        c.LambdaCallback(on_epoch_end=stop)])
"""


def test_callbacks_of_two_workers_stop_together_and_write_once(start: Start, tmp_path: Path) -> None:
    """One of them stops; reading BatchNormalization's statistics for a file needs both."""
    (tmp_path / "calling.py").write_text(CALLING)
    spec = TWO_WORKERS | {
        "keras": "Legacy",
        "program": {"function": {"entryPoint": "calling:build"}},
        "export": {"checkpoint": "Best", "monitor": "val_loss"},
    }
    gang = start(spec, source=tmp_path, epochs=5)
    assert gang.wait() == [0, 0], gang.errors()
    for worker in (0, 1):
        assert gang.finished(worker).message.startswith("a callback stopped it at step 44 of 110; exported step ")
    written = sorted(path.name for path in (gang.folder / "callbacks").iterdir())
    assert written == ["kept.keras", "log.csv"]
    rows = (gang.folder / "callbacks" / "log.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1"]


def test_killed_in_mid_training_a_run_ends_with_the_weights_of_an_undisturbed_one(start: Start) -> None:
    spec = {"accelerator": {"type": "cpu"}, "checkpoint": {"everySteps": 7}}
    # So many epochs that it still trains when its step 30 has been read.
    whole = start(spec, "whole", epochs=12, stepsPerExecution=1)
    killed = start(spec, "killed", epochs=12, stepsPerExecution=1)
    killed.until(step=30)
    killed.processes[0].kill()
    assert killed.wait() == [-signal.SIGKILL]
    assert not (killed.folder / "model").exists()
    rest = start(spec, "killed", epochs=12)
    assert (whole.wait(), rest.wait()) == ([0], [0])
    (started,) = rest.all(events.Started)
    assert 0 < started.first_step < 264
    assert equal(whole, rest)
    # Sums of float32 over other executions: the last digits of the mean loss may differ, no weight does.
    assert rest.metrics() == pytest.approx(whole.metrics(), rel=1e-6)


def test_a_sigterm_ends_the_run_with_a_checkpoint_at_that_step(start: Start) -> None:
    told = start(TWO_REPLICAS, **ENDLESS)
    told.until(step=10)
    told.processes[0].terminate()
    assert told.wait(60) == [75]
    saved, finished = told.all(events.Saved)[-1], told.finished()
    assert f"step {saved.step}: this machine is being preempted; saved" in finished.message
    assert (finished.reason, finished.exit_code) == ("Preempted", 75)
    assert saved.step >= max(event.step for event in told.all(events.Progress))
    assert Path(saved.uri, "state.json").exists()
    assert told.errors() == ""


def test_a_sigterm_to_one_worker_ends_the_others_too(start: Start) -> None:
    """All exit after the same step, which the chief has saved."""
    gang = start(TWO_WORKERS, **ENDLESS)
    gang.until(step=4)
    gang.processes[1].terminate()
    assert gang.wait(60) == [75, 75]
    step = gang.all(events.Saved)[-1].step
    for worker in (0, 1):
        assert gang.finished(worker).message.startswith(f"step {step}: ")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_killed_is_missed_within_seconds(start: Start, lost: int) -> None:
    gang = start(TWO_WORKERS, **ENDLESS)
    gang.until(step=4)
    gang.processes[lost].kill()
    codes = gang.wait(60)
    assert codes[lost] == -signal.SIGKILL
    assert codes[1 - lost] == 76
    finished = gang.finished(1 - lost)
    assert finished.reason == "PeerLost"
    assert "Traceback" not in gang.errors(1 - lost)


@pytest.mark.parametrize("poisoned", [0, 1])
def test_a_bad_record_of_one_worker_is_skipped_by_both(start: Start, tmp_path: Path, poisoned: int) -> None:
    """In index order worker r of two takes the records that are r modulo 2: 65 is worker 1's, in the third step."""
    count, batch = 256, 32
    x = np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)
    labels = x[:, :3].argmax(axis=1)
    x[2 * batch + poisoned, :] = 1e38
    np.savez(tmp_path / "numbers.npz", x=x, label=labels)
    convert(str(tmp_path / "numbers.npz"), str(tmp_path / "records"), keep_order=True)
    data = {"train": [f"{tmp_path}/records/train-*.tfrecord"], "shuffle": {"bufferSize": 0}}
    spec = TWO_WORKERS | {
        "precision": {"policy": "mixed_float16", "lossScale": {"mode": "Dynamic", "value": 1024}},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "checkpoint": {"everySteps": 1, "maxToKeep": 10},
    }
    gang = start(spec, data=data, batchSize={"global": batch}, stepsPerExecution=1)
    assert gang.wait() == [0, 0], gang.errors()
    for worker in (0, 1):
        seen = [(one.step, one.loss_scale, one.skipped_steps) for one in gang.all(events.Progress, worker)]
        assert seen[:4] == [(1, 1024.0, 0), (2, 1024.0, 0), (3, 512.0, 1), (4, 1024.0, 1)], "given back"
        (left_out,) = (one for one in gang.all(events.Notice, worker) if one.topic == "RecordExcluded")
        assert f"record {2 * batch + poisoned} of " in left_out.message
        assert gang.finished(worker).metrics == gang.finished(0).metrics
    states = {step: gang.folder / "checkpoints" / f"step-{step:010d}" for step in (2, 3, 4)}
    model = {step: (folder / "model.safetensors").read_bytes() for step, folder in states.items()}
    assert model[2] == model[3] != model[4], "the third step moved nothing"
    state = json.loads((states[3] / "state.json").read_text())
    assert (state["lossScale"], state["excluded"]) == (1024.0, [{"record": 2 * batch + poisoned, "step": 3}])
    (manifest,) = (gang.folder / "quarantine").iterdir()
    assert [one["record"] for one in json.loads(manifest.read_text())["records"]] == [2 * batch + poisoned]
    assert all(np.isfinite(array).all() for array in gang.weights())


def poisoned(folder: Path, rows: list[int]) -> dict[str, Any]:
    """256 records in index order, those in `rows` full of NaN."""
    x = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
    labels = x[:, :3].argmax(axis=1)
    x[rows] = np.nan
    np.savez(folder / "poisoned.npz", x=x, label=labels)
    convert(str(folder / "poisoned.npz"), str(folder / "records"), keep_order=True)
    return {"train": [f"{folder}/records/train-*.tfrecord"], "shuffle": {"bufferSize": 0}}


def test_two_workers_recover_together_and_change_their_policy_together(start: Start, tmp_path: Path) -> None:
    """The first NaNs are in step 3, the second in step 7, in more of a batch than its records could be skipped."""
    spec = TWO_WORKERS | {
        "precision": {"policy": "mixed_bfloat16"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "checkpoint": {"everySteps": 2},
    }
    gang = start(
        spec, data=poisoned(tmp_path, [*range(65, 85), *range(192, 212)]), batchSize={"global": 32}, stepsPerExecution=2
    )
    assert gang.wait() == [0, 0], gang.errors()
    for worker in (0, 1):
        back = [(one.from_step, one.to_step, one.precision) for one in gang.all(events.Recovered, worker)]
        assert back == [(3, 2, "mixed_bfloat16"), (7, 6, "float32")]
        assert gang.finished(worker).metrics == gang.metrics()
    result = json.loads((gang.folder / "result.json").read_text())
    assert (result["precision"], result["recoveries"], result["skippedSteps"]) == ("float32", 2, 2)
    assert all(np.isfinite(array).all() for array in gang.weights())


def test_two_workers_report_the_same_first_step(start: Start, tmp_path: Path) -> None:
    spec = TWO_WORKERS | {"program": {"application": {"name": "mlp", "classes": 3}}}
    data = poisoned(tmp_path, [65])
    gang = start(spec, data=data, batchSize={"global": 32}, stepsPerExecution=2, onNonFinite="Fail")
    assert gang.wait() == [3, 3], gang.errors()
    assert gang.finished(0).message == gang.finished(1).message
    assert "step 3: " in gang.finished(0).message
    assert "among examples 64 to 95 of pass 1)" in gang.finished(0).message
    assert "it began with the input 'x' (record 65 of " in gang.finished(0).message


SCRIPT = """
import keras, numpy as np, os, signal, time
keras.utils.set_random_seed(1)
x = np.arange(24, dtype="float32").reshape(8, 3) / 24
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")

class Taken(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if os.environ.get("TAKEN") == str(epoch):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)  # until it was heard; an epoch takes no time here

model.fit(x, x.sum(axis=1), batch_size=4, epochs=5, shuffle=False, callbacks=[Taken()])
"""


def test_a_script_resumes_by_epoch(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fit.py").write_text(SCRIPT)
    spec = {"accelerator": {"type": "cpu"}, "program": {"script": {"path": "fit.py"}}}
    monkeypatch.setenv("TAKEN", "2")
    first = start(spec, source=tmp_path)
    assert first.wait() == [75], first.errors()
    assert [event.step for event in first.all(events.Saved)] == [2, 4]
    monkeypatch.delenv("TAKEN")
    rest, undisturbed = start(spec, source=tmp_path), start(spec, "undisturbed", source=tmp_path)
    assert (rest.wait(), undisturbed.wait()) == ([0], [0]), rest.errors()
    assert [event.step for event in rest.all(events.Saved)] == [6, 8, 10]
    assert equal(rest, undisturbed, 1e-6)


SEVERAL = """
import json, os, signal
import numpy as np
import tf_keras as keras
keras.utils.set_random_seed(1)

# Keras cannot rebuild it: its argument is no part of any configuration.
class Shifted(keras.layers.Layer):
    def __init__(self, by):
        super().__init__()
        self.by = by
    def build(self, shape):
        self.scale = self.add_weight("scale", shape[-1:], initializer="ones")
    def call(self, x):
        return x * self.scale + self.by

x = np.arange(96, dtype="float32").reshape(32, 3) / 96
model = keras.Sequential(
    [keras.layers.Input((3,)), keras.layers.BatchNormalization(), Shifted(np.ones(3, "float32")), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
worker = os.environ["JOB_COMPLETION_INDEX"]

class Lost(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if os.environ.get("LOST") == f"{epoch} {worker}":
            os.kill(os.getpid(), signal.SIGKILL)

model.fit(x, x.sum(axis=1), batch_size=8, epochs=3, shuffle=False, callbacks=[Lost()])
print("EVALUATED", json.dumps(model.evaluate(x, x.sum(axis=1), batch_size=8, verbose=0)))
"""


def test_a_script_over_several_workers_with_batch_normalization(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moving statistics are each worker's own: every worker takes part in saving them, and only the chief
    publishes.

    Its custom layer keeps Keras from making a copy for the export, which must not read variables then.
    """
    (tmp_path / "several.py").write_text(SEVERAL)
    spec = TWO_WORKERS | {"program": {"script": {"path": "several.py"}}}
    monkeypatch.setenv("LOST", "2 1")
    first = start(spec, source=tmp_path)
    assert first.wait() == [76, -signal.SIGKILL], first.errors()
    assert [event.step for event in first.all(events.Saved)] == [4, 8]
    assert first.all(events.Saved, worker=1) == []
    monkeypatch.delenv("LOST")
    rest, undisturbed = start(spec, source=tmp_path), start(spec, "undisturbed", source=tmp_path)
    assert (rest.wait(), undisturbed.wait()) == ([0, 0], [0, 0]), rest.errors()
    (started,) = rest.all(events.Started)
    assert (started.keras[:8], started.replicas_in_sync) == ("tf_keras", 2)
    assert [event.step for event in rest.all(events.Saved)] == [12]
    assert equal(rest, undisturbed, 1e-6)
    said = [
        next(line for line in attempt.outputs[worker].read_text().splitlines() if line.startswith("EVALUATED"))
        for attempt in (rest, undisturbed)
        for worker in (0, 1)
    ]
    losses = [json.loads(line.removeprefix("EVALUATED ")) for line in said]
    assert losses == [pytest.approx(losses[0], rel=1e-5)] * 4, "all workers evaluate one model on all of the data"
    assert [notice.topic for notice in rest.all(events.Notice)].count("OnlyWeights") == 1


KERAS_2 = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
path = "training_1/cp.ckpt"
model = keras.Sequential([keras.layers.InputLayer((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(lr=0.1, decay=1e-3), "mse")
model.fit(np.ones((8, 3)), np.ones((8, 1)), callbacks=[keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
print("RATE", float(keras.backend.get_value(model.optimizer.lr)))
model.save("folder")
"""


def test_keras_2_code_gets_the_keras_that_runs_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(KERAS_2.replace("Adam(lr", "legacy.Adam(lr"))
    done = start({"accelerator": {"type": "cpu"}, "program": {"script": {"path": "old.py"}}}, source=tmp_path)
    assert done.wait() == [0], done.errors()
    (said,) = [notice.message for notice in done.all(events.Notice) if notice.topic == "KerasLegacy"]
    assert "old.py is written for Keras 2: " in said
    (started,) = done.all(events.Started)
    assert (started.keras[:8], started.strategy) == ("tf_keras", "None")
    assert json.loads((done.folder / "result.json").read_text())["keras"] == "Legacy"


OWN_STRATEGY = """
import json, os
import numpy as np
import tensorflow as tf
import tf_keras as keras
config = json.loads(os.environ["TF_CONFIG"])
print("TASK", config["task"]["index"], len(config["cluster"]["worker"]))
if os.environ.get("ALONE"):
    raise SystemExit(0)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, epochs=1)
print("TRAINED", strategy.num_replicas_in_sync)
"""


@pytest.mark.parametrize("alone", ["", "1"])
def test_a_strategy_of_the_script_s_own_finds_its_workers(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: str
) -> None:
    """By TF_CONFIG. Workers whose ports never open wait for each other as well, and exit."""
    (tmp_path / "own.py").write_text(OWN_STRATEGY)
    monkeypatch.setenv("ALONE", alone)
    done = start(TWO_WORKERS | {"program": {"script": {"path": "own.py"}}, "strategy": "None"}, source=tmp_path)
    assert done.wait() == [0, 0], done.errors()
    for worker in (0, 1):
        lines = done.outputs[worker].read_text().splitlines()
        assert f"TASK {worker} 2" in lines
        assert ("TRAINED 2" in lines) == (not alone)


def test_the_legacy_generation_runs_and_resumes(start: Start) -> None:
    spec = TWO_REPLICAS | {"keras": "Legacy"}
    assert start(spec, epochs=1).wait() == [0]
    longer = start(spec, epochs=2)
    assert longer.wait() == [0], longer.errors()
    (started,) = longer.all(events.Started)
    assert started.keras.startswith("tf_keras")
    assert started.first_step == 22
    assert longer.metrics()["val_loss"] < 2.0


def test_a_users_mistake_is_one_line_and_exit_code_2(start: Start) -> None:
    wrong = start(TWO_REPLICAS | {"program": {"function": {"entryPoint": "no_such_module:build"}}})
    assert wrong.wait() == [2]
    assert wrong.errors() == ""
    message = wrong.finished().message
    assert "spec.program.function.entryPoint: no module 'no_such_module'" in message
    assert "\n" not in message
    assert not (wrong.folder / "model").exists()
    assert not (wrong.folder / "job.json").exists(), "fixed, the job may run in this folder"


def test_without_a_job_the_trainer_prints_its_usage() -> None:
    command = [sys.executable, "-m", "mptraining_trainer"]
    bare = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert bare.stderr.startswith("usage: python -m mptraining_trainer train")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MPTRAINING")}
    for job_file, said in ((None, "MPTRAINING_JOB_FILE: not set"), ("no/such/job.json", "no/such/job.json: No such")):
        given = {} if job_file is None else {"MPTRAINING_JOB_FILE": job_file}
        asked = subprocess.run(
            [*command, "train"], capture_output=True, text=True, timeout=240, check=False, env=environment | given
        )
        assert asked.returncode == 2
        assert asked.stderr.startswith(f"error: {said}")
        assert asked.stderr.count("\n") == 1


def test_without_a_run_folder_the_chief_keeps_the_model(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    done = start(TWO_WORKERS | {"output": None})
    assert done.processes[1].wait(PATIENCE) == 0, done.errors(1)
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "tmp" / "mptraining-kept.json").exists():
        assert done.processes[0].poll() is None, done.errors()
        assert time.monotonic() < end
        time.sleep(0.05)
    assert any(event.topic == MODEL_WAITS for event in done.all(events.Notice))
    assert (done.finished().reason, done.finished().kept_seconds) == ("Succeeded", 600)
    sent = subprocess.run([sys.executable, *SEND_COMMAND[1:], "."], capture_output=True, check=True, timeout=240)
    with tarfile.open(fileobj=io.BytesIO(sent.stdout)) as tar:
        names = {"model/model.json", "model/weights.npz", "model/rebuild.py", "job.json", "result.json"}
        assert names <= set(tar.getnames())
    subprocess.run([sys.executable, *FETCHED_COMMAND[1:]], check=True, timeout=240)
    assert done.wait(120) == [0, 0]
