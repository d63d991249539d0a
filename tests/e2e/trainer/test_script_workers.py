"""Scripts in processes of their own: resuming by epoch, several workers, Keras 2, a strategy of their own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from mptraining.runs import load_run
from mptraining_api import events
from tests.testbed.attempts import TWO_WORKERS, Start, equal

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
    (resumed,) = rest.all(events.Started)
    assert resumed.first_step == 4
    steps = [point.step for point in load_run(str(rest.folder)).history.points]
    assert steps == sorted(set(steps)), "every step once"
    assert {2, 4, 6, 8, 10} <= set(steps), "all epochs, those of the first attempt too"


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


GRAPH_MODE = """
import numpy as np
import tensorflow as tf
import tf_keras as keras
tf.compat.v1.disable_eager_execution()
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones((8, 1)))
"""


def test_a_fit_in_graph_mode_is_refused_before_it_trains(start: Start, tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(GRAPH_MODE)
    done = start({"accelerator": {"type": "cpu"}, "program": {"script": {"path": "graph.py"}}}, source=tmp_path)
    assert done.wait() == [2], done.errors()
    assert done.finished().reason == "InvalidProgram"
    assert "model.fit in graph mode" in done.finished().message
    assert "disable_eager_execution" in done.finished().message


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
