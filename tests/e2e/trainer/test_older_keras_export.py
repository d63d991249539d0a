"""An older Keras 3 rebuilds exported models: `build/env/keras-older` is its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.keras_backend import Keras
from tests.training.export.test_export import PROGRAMS, REBUILD, answers, expected, export, job, source, trained

OLDER = Path(__file__).parents[3] / "build" / "env" / "keras-older" / "bin" / "python"
__all__ = ["source"]


@pytest.mark.skipif(not OLDER.exists(), reason="run: make build/env/keras-older/.installed")
@pytest.mark.parametrize(("program", "example"), PROGRAMS)
@pytest.mark.parametrize("keras", ["Keras3"], indirect=True)
def test_an_older_keras_rebuilds_it(
    keras: Keras, tmp_path: Path, source: Path, program: dict[str, Any], example: ExampleSpec
) -> None:
    folder = tmp_path / "model"
    export(trained(keras, job(program), example), keras, job(program), example, folder, 1)
    outputs = expected(folder, example)
    assert answers(OLDER, folder, REBUILD) == [outputs]
