"""`backend="local"`: the package unpacked, trained by processes of this machine, its run folder returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mptraining.tensorflow_cloud as tfc

SCRIPT = """\
import sys
import numpy as np
import keras
import tensorflow_cloud as tfc

assert tfc.remote()
keras.utils.set_random_seed(1)
job = tfc.run(chief_config=tfc.COMMON_MACHINE_CONFIGS["T4_4X"])
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 3), "float32"), np.ones((8, 1), "float32"), epochs=2, batch_size=4, verbose=0)
job.model()
sys.exit("not reached")
"""


def test_a_script_of_tensorflow_cloud_s_trains_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    job: Any = tfc.run("train.py", backend="local", name="flowers")
    assert job["job_id"] == "flowers"
    assert job.status().succeeded
    assert (tmp_path / "runs" / "flowers" / "model" / "model.keras").exists()
    assert job.history.points[-1].metrics["loss"] < 3
    assert job.model().predict(np.ones((1, 3), "float32"), verbose=0).shape == (1, 1)
