"""The generation of Keras that a program's text shows.

tests/e2e/trainer/test_keras_of_script.py runs the same table.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mptraining_api.keras_2.source_code import KerasCode, detect_in_image, detect_in_requirements, detect_in_source

TABLE = yaml.safe_load((Path(__file__).parents[3] / "golden" / "keras_2_code.yaml").read_text())


def seen(code: str) -> KerasCode:
    return detect_in_source(TABLE["prelude"] + code)


@pytest.mark.parametrize("code", TABLE["keras_2"])
def test_keras_2_code_has_a_sign(code: str) -> None:
    found = seen(code)
    assert found.needs_legacy, found
    assert all(sign.line > TABLE["prelude"].count("\n") for sign in found.keras_2)


@pytest.mark.parametrize("code", TABLE["either"])
def test_code_of_both_generations_has_none(code: str) -> None:
    assert seen(code) == KerasCode()


@pytest.mark.parametrize("code", TABLE["keras_3"])
def test_keras_3_code_is_never_legacy(code: str) -> None:
    found = seen(code) + detect_in_source("model.fit_generator(x)")
    assert found.keras_3
    assert not found.needs_legacy


def test_a_sign_names_its_line_and_what_is_different() -> None:
    (sign,) = detect_in_source("import tensorflow as tf\nprint(model.optimizer.lr)\n").keras_2
    assert str(sign) == "model.optimizer.lr in line 2 (learning_rate is its name in Keras 3)"


def test_what_asks_for_keras_2_itself() -> None:
    assert detect_in_source("import tf_keras as keras").needs_legacy
    assert detect_in_source('import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"').needs_legacy
    assert detect_in_source("import tensorflow_hub as hub\nhub.KerasLayer('x')").needs_legacy
    assert not detect_in_source("import tensorflow_hub as hub\nhub.load('x')").needs_legacy
    assert detect_in_source("from transformers import TFAutoModel").needs_legacy
    assert not detect_in_source('import os\nos.environ["TF_USE_LEGACY_KERAS"] = "0"').needs_legacy


def test_bare_keras_is_keras_3_in_every_job() -> None:
    found = detect_in_source("from keras.models import Model\nmodel.save('folder')")
    assert found.keras_2
    assert not found.needs_legacy
    assert detect_in_source("from keras.utils import to_categorical\nmodel.save('folder')").needs_legacy


def test_what_tf_keras_takes_and_ignores() -> None:
    found = detect_in_source("import tensorflow as tf\ntf.keras.optimizers.Adam(lr=0.1)")
    assert [sign.code for sign in found.ignored] == ["Adam(lr=)"]
    assert not found.needs_legacy


@pytest.mark.parametrize("text", ["", "%matplotlib inline", "def f(:", "\0", "x = " + "-" * 20000 + "1"])
def test_a_text_that_is_no_python_shows_nothing(text: str) -> None:
    assert detect_in_source(text) == KerasCode()


@pytest.mark.parametrize(
    ("line", "older"),
    [
        ("tensorflow-gpu==2.4  # for the cluster", True), ("tensorflow~=2.3.0", True), ("tensorflow~=2.3", False),
        ("tensorflow<2.16", True), ("tensorflow<2.16.0", True), ("tensorflow<2.17", False),
        ("tensorflow>=2.4,<2.13", True), ("tensorflow<=2.15", True), ("tensorflow==2.*", False),
        ("tensorflow==2.16.1", False), ("keras<3.0", True), ("keras==2.*", True), ("keras~=2.12", True),
        ("keras>=3", False), ("tensorflow_datasets==1.0", False), ("-r more.txt", False),
    ],
)  # fmt: skip
def test_requirements_of_keras_2(line: str, older: bool) -> None:
    assert detect_in_requirements(f"numpy\n{line}\n").needs_legacy is older


def test_images_of_keras_2() -> None:
    assert detect_in_image("tensorflow/tensorflow:2.3.0-gpu").needs_legacy
    assert detect_in_image("gcr.io/deeplearning-platform-release/tf2-gpu.2-5").needs_legacy
    assert not detect_in_image("tensorflow/tensorflow:2.21.0").needs_legacy
    assert not detect_in_image("tensorflow/tensorflow:latest").needs_legacy
    assert not detect_in_image(None).needs_legacy
