"""An older Keras 3 opens a fetched model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.testbed.exported_model import INPUTS

ROOT = Path(__file__).parents[3]
OLDER = ROOT / "build" / "env" / "keras-older" / "bin" / "python"


@pytest.mark.skipif(not OLDER.exists(), reason="no build/env/keras-older: an environment with an older Keras 3")
def test_an_older_keras_builds_it_again(exported: tuple[Path, list[float]]) -> None:
    folder, outputs = exported
    assert answers_of_older(folder) == pytest.approx(outputs, rel=1e-4)


@pytest.mark.skipif(not OLDER.exists(), reason="no build/env/keras-older: an environment with an older Keras 3")
def test_an_older_keras_opens_a_scripts_model_without_what_it_lacks(
    exported: tuple[Path, list[float]], tmp_path: Path
) -> None:
    """A script's folder has no way to build its model again; this Keras writes arguments that the older one refuses."""
    folder, outputs = exported
    for name in ("model.json", "model.keras"):
        shutil.copy(folder / name, tmp_path)
    assert answers_of_older(tmp_path) == pytest.approx(outputs, rel=1e-4)


def answers_of_older(folder: Path) -> list[float]:
    """Return the results of the folder's model in a process with the older Keras."""
    code = (
        "import json, numpy as np\nfrom pathlib import Path\nfrom mptraining.cluster.trained_model import load_model\n"
        f"model = load_model(Path({str(folder)!r}))\n"
        f"print(json.dumps(np.asarray(model(np.array({INPUTS.tolist()}, 'float32')), 'float64').ravel().tolist()))"
    )
    paths = os.pathsep.join(str(ROOT / part) for part in ("client", "api"))
    environment = os.environ | {"PYTHONPATH": paths}
    command = [str(OLDER), "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found
