"""Third-party programs as scripts: the trainer trains them to the same numbers as plain Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf

from mptraining_api import events
from tests.left_out import TEST_ALL, first_of
from tests.testbed.keras_generations import GENERATIONS
from tests.training.script_runs import PROGRAMS, Alone, ThroughUs

# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("own_train_step", "Keras3"),
        *first_of(
            ("custom_loop", "Keras3"),
            ("vae", "Keras3"),
            ("gan", "Keras3"),
            ("siamese", "Keras3"),
            ("distiller", "Legacy"),
            ("legacy_own_train_step", "Legacy"),
            ("mixed_precision_guide", "Keras3"),
            ("legacy_mixed_precision_guide", "Legacy"),
            ("book_mixed_precision", "Keras3"),
        ),
    ],
)
def test_a_program_trains_as_it_does_alone(
    name: str, generation: str, tmp_path: Path, alone: Alone, through_us: ThroughUs
) -> None:
    expected = alone(PROGRAMS / f"{name}.py", generation)
    done = through_us(PROGRAMS / f"{name}.py", tmp_path, generation=generation)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses == expected
    assert done.all(events.Started)[0].strategy == "None"


@TEST_ALL
@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
def test_the_article_on_transfer_learning_trains(generation: str, tmp_path: Path, through_us: ThroughUs) -> None:
    """Its clear_session must remove neither the scope nor the policy; alone it takes as much time again."""
    done = through_us(PROGRAMS / "transfer_learning_article.py", tmp_path, generation=generation)
    assert done.outcome.reason == "Succeeded", done.message
    assert len(done.losses) == 2
    assert (done.result.precision, done.result.model) == ("mixed_float16", "model")
    assert json.loads(done.read("model/model.json"))["policy"] == "float32"


CLEARED = """
import numpy as np
import tensorflow as tf
{imports}
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
{clear}()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
print("DEVICES", model.layers[0].compute_dtype, tf.distribute.get_strategy().num_replicas_in_sync)
model.compile("sgd", "mse")
print("LOSSES", model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=1, batch_size=4, verbose=0).history["loss"])
"""


@pytest.mark.parametrize(
    ("imports", "clear", "generation"),
    [
        ("import keras", "keras.utils.clear_session", "Keras3"),
        *first_of(
            ("from tensorflow import keras", "tf.keras.backend.clear_session", "Keras3"),
            ("import keras", "keras.backend.clear_session", "Keras3"),
            ("from tensorflow import keras", "tf.keras.backend.clear_session", "Legacy"),
            ("import tf_keras as keras", "keras.backend.clear_session", "Legacy"),
        ),
    ],
)
def test_clear_session_keeps_policy_and_scope(
    imports: str, clear: str, generation: str, tmp_path: Path, through_us: ThroughUs
) -> None:
    text = CLEARED.format(imports=imports, clear=clear)
    done = through_us(text, tmp_path, generation=generation, policy="mixed_bfloat16", replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert "DEVICES bfloat16 2\n" in done.printed
    assert not tf.distribute.has_strategy()
    assert done.result.replicas_in_sync == 2


OWN_CLASSES = """
import numpy as np
{imports}
class Block(keras.layers.Layer):
    def __init__(self, {argument}, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4, activation=swish2)
        self.by = {argument}
    def call(self, x):
        return self.dense(x) + keras.{ops}.cast(self.by, self.compute_dtype)
def swish2(x):
    return x * 2
keras.utils.set_random_seed(1)
inputs = keras.Input((3,))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(Block({value})(inputs)))
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
print("PREDICTED", model.predict(np.ones((1, 3)), verbose=0).tolist())
"""


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("argument", "value"), first_of(("by", "0.5"), ("array", "np.ones(4)")))
def test_a_model_with_classes_of_the_script_is_exported_in_float32(
    generation: str, argument: str, value: str, tmp_path: Path, through_us: ThroughUs
) -> None:
    legacy = generation == "Legacy"
    imports = "import tf_keras as keras" if legacy else "import keras"
    ops = "backend" if legacy else "ops"
    text = OWN_CLASSES.format(imports=imports, argument=argument, value=value, ops=ops)
    done = through_us(text, tmp_path, generation=generation, policy="mixed_bfloat16", replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    about = json.loads(done.read("model/model.json"))
    loadable = argument == "by"
    assert about["formats"] == ["model.keras" if loadable else "saved_model"], about["leftOut"]
    assert about["policy"] == ("float32" if loadable else "mixed_bfloat16")
    assert ("OnlyWeights" in done.notices) == (not loadable)
    assert Path(done.folder, "model", "model.weights.h5").exists() == (not loadable)
    assert len(done.weights()) == 4


def test_a_model_without_call_trains_on_replicas(tmp_path: Path, through_us: ThroughUs) -> None:
    """Plain Keras calls it there first, which it does not support."""
    done = through_us(PROGRAMS / "vae.py", tmp_path, replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses[-1] < done.losses[0]
    assert "has to be divided by 2" in done.notices["OwnTrainStep"]
    unbuilt = through_us(PROGRAMS / "siamese.py", tmp_path / "siamese", replicas=2)
    assert "build all of its layers before fit, or set accelerator.countPerWorker: 1" in unbuilt.message


OWN_OPTIMIZER = """
import keras, numpy as np, tensorflow as tf
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.part = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    def compile(self, own):
        super().compile()
        self.own = own
    def train_step(self, x):
        # A shape that is known within the step alone.
        noise = tf.zeros((tf.shape(x)[0], 3))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.part(tf.concat([x, noise], 0)) - 1) ** 2) / 2
        variables = self.part.trainable_variables
        self.own.apply_gradients(zip(tape.gradient(loss, variables), variables))
        # Keras' History takes no bfloat16.
        return {"own": tf.cast(loss, tf.float32)}
model = Gan()
model.compile(keras.optimizers.Adam(0.1))
history = model.fit(np.ones((8, 3), "float32"), batch_size=4, epochs=2, shuffle=False, verbose=2)
assert len(model.own.variables) == 6
print("LOSSES", history.history["own"])
"""


def test_an_optimizer_beside_the_compiled_one_is_built_before_it_trains_on_replicas(
    tmp_path: Path, through_us: ThroughUs
) -> None:
    """Plain Keras creates its variables within the traced step, which TensorFlow then cannot run."""
    failed = through_us(OWN_OPTIMIZER, tmp_path / "unbuilt", replicas=2)
    assert "build layers and optimizers before fit" in failed.message
    built = OWN_OPTIMIZER.replace(
        "        self.own = own\n", "        self.own = own\n        own.build(self.part.trainable_variables)\n"
    )
    done = through_us(built, tmp_path / "built", replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses[-1] < done.losses[0]
