"""Models by name: their inputs, their outputs, their refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidSpec, StorageUnavailable
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model import applications
from mptraining_trainer.model.applications import BuiltApplication
from tests.fakes import Notices
from tests.jobs import resolved_job
from tests.left_out import first_of

LABEL = TensorSpec("label", "int64", ())
NAMES = ("daisy", "rose", "tulip")


def example(*inputs: tuple[str, tuple[int | None, ...]], classes: tuple[str, ...] | None = NAMES) -> ExampleSpec:
    specs = (TensorSpec(f"input_{number}", dtype, shape) for number, (dtype, shape) in enumerate(inputs))
    return ExampleSpec(tuple(specs), (LABEL,), classes)


PHOTO = example(("uint8", (32, 32, 3)))
GREY = example(("uint8", (28, 28)))
TABLE = example(("float32", ()), ("int64", ()), ("float32", (4,)))


def job(application: dict[str, Any], **changed: Any) -> ResolvedJob:
    training = {"epochs": 1, "batchSize": {"global": 8}}
    data = {"train": ["x.tfrecord"], "label": "label"}
    return resolved_job(program={"application": application}, data=data, training=training).model_copy(update=changed)


def build(keras: Keras, application: dict[str, Any], examples: ExampleSpec, **changed: Any) -> BuiltApplication:
    return build_of(job(application, **changed), keras, examples, Notices())


def build_of(resolved: ResolvedJob, *arguments: Any) -> BuiltApplication:
    assert resolved.program.application is not None
    return applications.build(resolved.program.application, resolved, *arguments)


def zeros(data: ExampleSpec) -> Any:
    batch = {spec.name: np.zeros((2, *(size or 32 for size in spec.shape)), spec.dtype) for spec in data.inputs}
    return batch if len(batch) > 1 else next(iter(batch.values()))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("mlp", TABLE),
        ("mlp", PHOTO),
        ("cnn", GREY),
        *first_of(
            ("cnn", example(("uint8", (None, None, 3)))),
            ("cnn", PHOTO),
            ("cnn", example(("float32", (5, 7, 1)))),
            ("mlp", example(("float32", ()))),
            ("mlp", GREY),
            ("MobileNetV2", PHOTO),
        ),
    ],
)
@pytest.mark.parametrize("policy", first_of("mixed_bfloat16", "float32"))
def test_every_model_ends_in_float32_logits_for_each_class(
    keras: Keras, name: str, data: ExampleSpec, policy: str
) -> None:
    keras.set_policy(policy)
    model = build(keras, {"name": name}, data).model
    logits = model(zeros(data))
    assert (logits.shape, logits.dtype) == ((2, 3), tf.float32)
    assert keras.output_layer(model).activation.__name__ == "linear"


@pytest.mark.parametrize("name", first_of("cnn", "mlp"))
@pytest.mark.parametrize(("preprocess", "largest"), [("auto", 1.0), ("none", 255.0)])
def test_bytes_are_scaled_to_one_inside_the_model_unless_preprocess_is_none(
    keras: Keras, name: str, preprocess: str, largest: float
) -> None:
    resolved = job({"name": name})
    assert resolved.data is not None
    data = resolved.data.model_copy(update={"preprocess": preprocess})
    model = build(keras, {"name": name}, PHOTO, data=data).model
    first = next(layer for layer in model.layers if type(layer).__name__ in ("Flatten", "Conv2D"))
    seen = keras.module.Model(model.input, first.input)(np.full((1, 32, 32, 3), 255, "uint8"))
    assert float(np.max(seen)) == pytest.approx(largest)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    first_of(
        ("MobileNetV2", -1.0, 1.0),
        ("ResNet50V2", -1.0, 1.0),
        ("VGG16", -123.68, 151.061),
        ("EfficientNetB0", 0.0, 255.0),
    ),
)
def test_preprocess_is_what_the_architecture_was_published_with(
    keras: Keras, name: str, low: float, high: float
) -> None:
    built = build(keras, {"name": name}, PHOTO)
    assert built.preprocess is not None
    images = tf.constant([0, 255], tf.uint8)[:, None, None, None] * tf.ones((1, 32, 32, 3), tf.uint8)
    prepared = built.preprocess(images)
    assert prepared.dtype == tf.float32
    assert (float(np.min(prepared)), float(np.max(prepared))) == pytest.approx((low, high), abs=1e-3)


def test_grey_images_are_scaled_where_the_published_way_is_for_three_channels(keras: Keras) -> None:
    notices = Notices()
    built = build_of(job({"name": "MobileNetV2"}), keras, example(("uint8", (32, 32, 1))), notices)
    assert built.preprocess is not None
    assert "[-1, 1]" in notices.of("Preprocess")
    assert built.preprocess(tf.constant([0, 255], tf.uint8)).numpy() == pytest.approx([-1.0, 1.0])


# The smallest side of an image if it is not 32; Keras' own figures (min_size of obtain_input_shape).
SMALLEST = {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75}


def test_every_name_is_an_architecture_with_its_preprocessing_and_smallest_image(keras: Keras) -> None:
    names = applications.names(keras)
    assert names[:2] == ["mlp", "cnn"]
    assert {"ConvNeXtTiny", "DenseNet121", "EfficientNetV2B0", "NASNetMobile", "ResNet50", "VGG16"} <= set(names)
    assert len(names) >= 42
    for name in names[2:]:
        side = SMALLEST.get(name, 32) - 1
        with pytest.raises(InvalidSpec, match=rf"{name} cannot be built for these images: .*at least {side + 1}x"):
            build(keras, {"name": name}, example(("uint8", (side, side, 3))))
        module = sys.modules[getattr(keras.module.applications, name).__module__]
        assert module.preprocess_input(np.zeros((1, 2, 2, 3), np.float32)).shape == (1, 2, 2, 3)


def test_weights_that_cannot_be_downloaded_have_a_next_step(keras: Keras, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_internet(*arguments: Any, **named: Any) -> None:
        # The message of Keras' get_file.
        raise Exception("URL fetch failure on https://example.com/weights.h5: None -- Name or service not known")

    monkeypatch.setattr(applications, "pretrained", no_internet)
    with pytest.raises(StorageUnavailable) as raised:
        build(keras, {"name": "MobileNetV2", "weights": "imagenet"}, PHOTO)
    assert "https://example.com/weights.h5" in str(raised.value)
    assert str(raised.value).endswith(
        "Fetch that file where there is internet, and give its path or gs:// URI as weights."
    )


@pytest.mark.parametrize("name", first_of("model.keras", "model.weights.h5"))
def test_weights_come_from_a_bucket(keras: Keras, bucket: str, tmp_path: Path, name: str) -> None:
    trained = build(keras, {"name": "mlp"}, GREY).model
    (trained.save if name == "model.keras" else trained.save_weights)(str(tmp_path / name))
    uri = f"{bucket}/run/model/{name}"
    storage.upload(tmp_path / name, uri)
    model = build(keras, {"name": "mlp", "weights": uri}, GREY).model
    for expected, found in zip(trained.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_a_frozen_base_leaves_the_head_to_train(keras: Keras) -> None:
    inputs = [{"name": "image", "dtype": "uint8", "shape": [32, 32, 3]}]
    model = applications.pretrained(keras.module, "MobileNetV2", inputs, classes=3, freeze_base=True)
    head = keras.output_layer(model)
    assert [id(variable) for variable in model.trainable_variables] == [
        id(variable) for variable in head.trainable_variables
    ]


def test_classes_come_from_the_job_before_the_manifest(keras: Keras) -> None:
    assert build(keras, {"name": "mlp", "classes": 7}, PHOTO).model.output_shape == (None, 7)


@pytest.mark.parametrize("part", first_of("base", "whole"))
def test_weights_come_from_a_file_of_the_whole_model_or_of_its_base(keras: Keras, tmp_path: Path, part: str) -> None:
    trained = build(keras, {"name": "MobileNetV2"}, PHOTO).model
    file = tmp_path / "model.weights.h5"
    base = keras.module.Model(trained.input, trained.layers[-2].output)
    (trained if part == "whole" else base).save_weights(str(file))
    model = build(keras, {"name": "MobileNetV2", "weights": str(file)}, PHOTO).model
    count = len(trained.weights) if part == "whole" else len(base.weights)
    for expected, found in zip(trained.get_weights()[:count], model.get_weights(), strict=False):
        np.testing.assert_array_equal(expected, found)


@pytest.mark.parametrize(
    ("application", "data", "field", "says"),
    [
        ({"name": "MobilNetV2"}, PHOTO, "application.name", "Did you mean 'MobileNetV2'?"),
        ({"name": "cnn"}, TABLE, "application.name", "input_1 int64[]"),
        ({"name": "MobileNetV2"}, TABLE, "application.name", "takes one image"),
        ({"name": "MobileNetV2"}, GREY, "data.features", "[28, 28]"),
        ({"name": "InceptionV3"}, PHOTO, "data.features", "at least 75x75"),
        ({"name": "InceptionV3"}, PHOTO, "data.features", "resize: [224, 224]"),
        ({"name": "mlp"}, example(("string", ())), "data.features", "string"),
        ({"name": "mlp"}, example(("uint8", (None, None, 3))), "data.features", "fixed shape"),
        (
            {"name": "mlp"},
            example(("float32", (2,)), classes=None),
            "application.classes",
            "Give the number of classes",
        ),
        (
            {"name": "mlp", "weights": "some.weights.h5", "freezeBase": True},
            PHOTO,
            "application.freezeBase",
            "has no base",
        ),
        ({"name": "mlp", "weights": "missing.weights.h5"}, PHOTO, "application.weights", "no such file"),
        pytest.param(
            {"name": "MobileNetV2", "weights": __file__},
            PHOTO,
            "application.weights",
            "does not fit MobileNetV2",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_field(
    keras: Keras, application: dict[str, Any], data: ExampleSpec, field: str, says: str
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        build(keras, application, data)
    assert field in raised.value.where
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("replicas", "jit", "synchronized", "said"),
    [
        (1, "Never", False, False),
        (2, "Never", True, False),
        (2, "WherePossible", False, True),
        (2, "Always", False, True),
    ],
)
def test_batch_normalization_sees_all_replicas_unless_xla_compiles_the_step(
    keras: Keras, replicas: int, jit: str, synchronized: bool, said: bool
) -> None:
    notices = Notices()
    several = job({"name": "cnn"}, replicas=replicas, jit_compile=jit)
    model = build_of(several, keras, PHOTO, notices).model
    layers = [each for each in model.layers if isinstance(each, keras.module.layers.BatchNormalization)]
    assert {bool(layer.synchronized) for layer in layers} == {synchronized}
    assert ("BatchNormalization" in notices.topics) is said
