"""Notebooks run by a real Jupyter kernel: one written for tensorflow-cloud, and one of typed jobs that train here."""

from __future__ import annotations

import json
from pathlib import Path

from tests.training.client.test_notebook import TYPED, execute, output, outputs

CELLS = (
    "import mptraining.colab",
    "import tensorflow_cloud as tfc",
    "EPOCHS = 3\nif tfc.remote():\n    !pip install -q tensorflow-cloud",
    "%%writefile flowers.py\nUNITS = 1\n",
    "%%time\nimport numpy as np\nimport keras\nimport flowers\n"
    "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(flowers.UNITS)])\n"
    "model.compile('sgd', 'mse')",
    "if tfc.remote():\n    !echo in the job\n"
    "    model.fit(np.ones((8, 3), 'float32'), np.ones((8, 1), 'float32'), epochs=EPOCHS, verbose=0)\n"
    "    model.fit",
    "job = tfc.run(LOCAL)",
    "from pathlib import Path\nassert job['job_id'] == 'flowers'\n"
    "Path('done.txt').write_text(str(job.history.points[-1].metrics))",
)


def test_a_notebook_for_tensorflow_cloud_trains(tmp_path: Path) -> None:
    local = "name='flowers', backend='local', chief_config=tfc.COMMON_MACHINE_CONFIGS['V100_4X']"
    done = execute(tmp_path, *(source.replace("LOCAL", local) for source in CELLS))
    assert done.returncode == 0, done.stderr + output(tmp_path)
    told = output(tmp_path)
    assert "pip install tensorflow-cloud: the trainer's image has its own tensorflow-cloud" in told
    assert "in the job" in "".join(outputs(tmp_path, "text/html")), "the cell's display"
    assert "'loss': " in (tmp_path / "done.txt").read_text()
    assert (tmp_path / "runs" / "flowers" / "model" / "model.keras").exists()


def test_a_wrong_argument_is_one_line(tmp_path: Path) -> None:
    done = execute(tmp_path, "import mptraining", TYPED[-1])
    assert done.returncode != 0
    assert "InvalidSpec: Accelerator(countPerNode=…): unknown argument. Did you mean 'count_per_node'?" in done.stderr
    assert "training_job.py" not in done.stderr


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    done = execute(tmp_path, CELLS[0], "import tensorflow_cloud as tfc\ntfc.run('trane.ipynb')")
    assert done.returncode != 0
    assert "Invalid `entry_point`. Expected a relative path in the current directory tree." in done.stderr
    assert "mptraining/run_arguments.py" not in done.stderr


def test_a_notebook_for_keras_2_has_it_here_too(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": "import tensorflow as tf\nmodel.save('folder')"}
    (tmp_path / "saved.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4}))
    done = execute(
        tmp_path,
        # As Jupyter's server sets it; the cell is not saved yet.
        "import os; os.environ['JPY_SESSION_NAME'] = 'saved.ipynb'\nimport mptraining.colab",
        "import tensorflow as tf\nprint(tf.keras.__name__)",
    )
    assert done.returncode == 0, done.stderr
    assert ".save('folder') (Keras 3 writes .keras)" in output(tmp_path)
    assert "tf_keras.api" in output(tmp_path)
