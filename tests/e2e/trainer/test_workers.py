"""Workers that train to the end: digits, callbacks of several workers, tf_keras."""

from __future__ import annotations

import json
from pathlib import Path

from mptraining_api import events
from tests.testbed.attempts import TWO_REPLICAS, TWO_WORKERS, Start


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
