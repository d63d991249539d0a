"""Functional models with several inputs, compared with plain `fit` on the same rows, and features that
do not fit them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.data.schema import TensorSpec
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel, input_order, shape_mismatch
from mptraining_trainer.step.train_loop import Loop, StepPlan, make_iterator
from tests.left_out import first_of

ROWS = {"left": np.arange(32.0).reshape(8, 4) / 32, "right": np.arange(24.0).reshape(8, 3) / 24}
ROWS = {name: rows.astype("float32") for name, rows in ROWS.items()}
LABELS = np.arange(8.0).reshape(8, 1).astype("float32")


def specs(**shapes: tuple[int | None, ...]) -> list[TensorSpec]:
    return [TensorSpec(name, "float32", shape) for name, shape in shapes.items()]


def entries(keras: Keras, names: tuple[str | None, str | None], widths: tuple[int, int]) -> list[Any]:
    return [keras.module.Input((width,), name=name) for width, name in zip(widths, names, strict=True)]


def model(keras: Keras, inputs: Any, first: Any, second: Any) -> Any:
    layers = keras.module.layers
    ones = {"kernel_initializer": "ones"}
    outputs = layers.Add()([layers.Dense(1, **ones)(first), layers.Dense(1, use_bias=False, **ones)(second)])
    made = keras.module.Model(inputs, outputs)
    made.compile(keras.module.optimizers.SGD(0.1), "mse")
    return made


@pytest.mark.parametrize(
    ("names", "order"), [((None, None), ("left", "right")), (("right", "left"), ("right", "left"))]
)
@pytest.mark.parametrize("accumulation", first_of(2, 1))
def test_a_list_of_inputs_trains_as_in_plain_fit(
    keras: Keras, names: tuple[str | None, str | None], order: tuple[str, str], accumulation: int
) -> None:
    widths = tuple(ROWS[name].shape[1] for name in order)

    def made() -> Any:
        inputs = entries(keras, names, widths)
        return model(keras, inputs, *inputs)

    plain = made()
    plain.fit([ROWS[name] for name in order], LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    ours = made()
    compiled = CompiledModel(keras, ours, features=specs(left=(4,), right=(3,)))
    assert compiled.inputs == order
    batch = ({name: tf.constant(rows) for name, rows in ROWS.items()}, tf.constant(LABELS), ())
    compiled.build(batch)
    strategy = tf.distribute.get_strategy()
    loop = Loop(strategy, compiled, ours.optimizer, StepPlan(8, accumulation=accumulation))
    loop.execute(make_iterator(strategy, lambda: tf.data.Dataset.from_tensors(batch).repeat()), 2)
    for found, expected in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_train_step_of_its_own_gets_what_fit_passes(keras: Keras) -> None:
    inputs = entries(keras, (None, None), (4, 3))
    compiled = CompiledModel(keras, model(keras, inputs, *inputs), features=specs(left=(4,), right=(3,)))
    passed, _, _ = compiled.keras_arguments((ROWS, LABELS, ()))
    assert isinstance(passed, tuple)
    assert [rows.shape[1] for rows in passed] == [4, 3]


def test_a_dict_of_inputs_stays_a_dict(keras: Keras) -> None:
    first, second = entries(keras, ("left", "right"), (4, 3))
    built = model(keras, {"left": first, "right": second}, first, second)
    assert input_order(keras, built, specs(right=(3,), left=(4,))) is None
    with pytest.raises(InvalidProgram, match="expected 2 features, left, right") as raised:
        CompiledModel(keras, built, features=specs(left=(4,), wrong=(3,)))
    assert raised.value.where == "spec.data.features"


def test_one_input_and_more_features_than_inputs(keras: Keras) -> None:
    first, second = entries(keras, ("left", "right"), (4, 3))
    several = model(keras, [first, second], first, second)
    assert input_order(keras, several, specs(left=(4,), right=(3,), more=(2,))) is None, "Keras picks them by name"
    single = keras.module.Model(first, keras.module.layers.Dense(1)(first))
    assert input_order(keras, single, specs(x=(4,))) is None
    assert input_order(keras, keras.module.Sequential([keras.module.layers.Dense(1)]), specs(a=(4,), b=(3,))) is None


@pytest.mark.parametrize(
    ("names", "features", "says"),
    [
        ((None, None), {"left": (4,)}, "1 for 2"),
        ((None, None), {"left": (4,), "right": (3,), "more": (2,)}, "3 for 2"),
        (("left", "right"), {"left": (4,)}, "expected 2 features, left, right"),
        (("left", "right"), {"other": (4,), "left": (3,)}, "'other' would be the input 'left'"),
        ((None, None), {"right": (3,), "left": (4,)}, "'right' would be the input"),
        ((None, None), {"left": (4,), "right": (2, 3, 4)}, "'right' would be the input"),
    ],
)
def test_features_that_are_not_the_inputs_are_refused(
    keras: Keras, names: tuple[str | None, str | None], features: dict[str, tuple[int | None, ...]], says: str
) -> None:
    inputs = entries(keras, names, (4, 3))
    with pytest.raises(InvalidProgram) as raised:
        CompiledModel(keras, model(keras, inputs, *inputs), features=specs(**features))
    assert raised.value.where == "spec.data.features"
    assert says in str(raised.value)
    for name, shape in features.items():
        assert f"{name} {list(shape)}" in str(raised.value)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((32, 32, 3), "'image' has shape [32, 32, 3]; expected [64, 64, 3], the shape of the model's input. Give the "
         "feature in data.features resize: [64, 64], or change the model's Input to shape [32, 32, 3]."),
        ((12,), "'image' has shape [12]; expected [64, 64, 3]"),
        ((64, 64, 1), "Give the records 3 channels (an encoded image is decoded to those of its shape in "
         "data.features), or change the model's Input to shape [64, 64, 1]."),
        ((32, 32, 1), "Give the records 3 channels"),
        ((64, 64, 3), None),
        ((None, None, 3), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("functional", [True, False])
def test_a_failed_model_names_the_shapes_of_feature_and_input(
    keras: Keras, functional: bool, shape: tuple[int | None, ...], says: str | None
) -> None:
    given = keras.module.Input((64, 64, 3), name="pixels")
    layers = [keras.module.layers.Flatten(), keras.module.layers.Dense(2)]
    model = keras.module.Sequential([given, *layers])
    if functional:
        model = keras.module.Model(given, layers[1](layers[0](given)))
    model.compile("sgd", "mse")
    found = shape_mismatch(CompiledModel(keras, model), [TensorSpec("image", "float32", shape)], "Keras raised")
    assert (found is None) if says is None else (says in str(found))


def test_another_error_of_a_model_that_takes_any_size_is_reported_as_it_is(keras3: Keras) -> None:
    # A functional model, and one of tf_keras, refuses other sizes than those of its Input.
    layers = keras3.module.layers
    model = keras3.module.Sequential(
        [keras3.module.Input((32, 32, 3)), layers.Conv2D(2, 3), layers.GlobalAveragePooling2D()]
    )
    model.compile("sgd", "mse")
    raised = "NameError: name 'alpha' is not defined " + "." * 400 + " (at loss.py:3)"
    compiled = CompiledModel(keras3, model)
    found = shape_mismatch(compiled, [TensorSpec("image", "float32", (28, 28, 3))], raised)
    assert found is not None
    assert found.where == "spec.program"
    assert str(found).startswith(
        f"spec.program: {raised}. The feature 'image' has shape [28, 28, 3], the model's Input "
    )
