"""Models by name: mlp, cnn, and the models of keras.applications.

`mlp`, `cnn` and `pretrained` take the plain `keras` module and JSON values and use nothing else in this file: `export`
writes their source next to the weights, so that a process without mptraining can build the same model.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidSpec, Problem, StorageUnavailable, nearest
from mptraining_api.programs.fields import Application
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage
from mptraining_trainer.data.schema import ExampleSpec
from mptraining_trainer.keras_backend import Keras

_NAME = "spec.program.application.name"
_WEIGHTS = "spec.program.application.weights"
_SCALED = "scale to [-1, 1]"


@dataclass(frozen=True)
class BuiltApplication:
    """A built application: `rebuild` is the builder and its JSON arguments, `preprocess` takes a batch of images."""

    model: Any
    preprocess: Callable[[Any], Any] | None
    preprocess_name: str | None
    rebuild: Mapping[str, Any]


def mlp(keras: Any, inputs: Sequence[Mapping[str, Any]], classes: int, rescale: bool) -> Any:
    """Return two hidden layers of 128 over the flattened, concatenated inputs; float32 logits [batch, classes]."""
    entries = {spec["name"]: keras.Input(tuple(spec["shape"]), name=spec["name"]) for spec in inputs}
    flat = []
    for spec in inputs:
        x = entries[spec["name"]]
        if rescale and spec["dtype"] == "uint8":
            x = keras.layers.Rescaling(1.0 / 255.0)(x)
        flat.append(keras.layers.Flatten()(x) if len(spec["shape"]) != 1 else x)
    x = keras.layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
    for number in (1, 2):
        x = keras.layers.Dense(128, activation="relu", name=f"hidden_{number}")(x)
    # The loss of float16 logits overflows, so the head is float32 under every policy.
    logits = keras.layers.Dense(classes, dtype="float32", name="head")(x)
    return keras.Model(entries if len(inputs) > 1 else next(iter(entries.values())), logits, name="mlp")


def cnn(keras: Any, inputs: Sequence[Mapping[str, Any]], classes: int, rescale: bool) -> Any:
    """Return three blocks of Conv2D, BatchNormalization and ReLU over one image; float32 logits [batch, classes]."""
    spec = inputs[0]
    image = keras.Input(tuple(spec["shape"]), name=spec["name"])
    x = keras.layers.Rescaling(1.0 / 255.0)(image) if rescale and spec["dtype"] == "uint8" else image
    if len(spec["shape"]) == 2:
        x = keras.layers.Reshape((*spec["shape"], 1))(x)
    for number, filters in enumerate((32, 64, 128), start=1):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"convolution_{number}")(x)
        # With Keras' default of 0.99 the initial statistics persist for some 500 steps, longer than training on small
        # data.
        x = keras.layers.BatchNormalization(momentum=0.9, name=f"normalization_{number}")(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D(padding="same")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(0.2)(x)
    logits = keras.layers.Dense(classes, dtype="float32", name="head")(x)
    return keras.Model(image, logits, name="cnn")


def pretrained(
    keras: Any, name: str, inputs: Sequence[Mapping[str, Any]], classes: int, freeze_base: bool, weights: Any = None
) -> Any:
    """Return the application's convolutional base, average-pooled, with a new head; float32 logits [batch, classes]."""
    base = getattr(keras.applications, name)(
        include_top=False, weights=weights, input_shape=tuple(inputs[0]["shape"]), pooling="avg"
    )
    base.trainable = not freeze_base
    logits = keras.layers.Dense(classes, dtype="float32", name="head")(base.output)
    return keras.Model(base.input, logits, name=name)


def build(
    application: Application,
    job: ResolvedJob,
    keras: Keras,
    example: ExampleSpec,
    notice: Callable[[str, str], None],
) -> BuiltApplication:
    """Return the application, under the current policy.

    Raises InvalidSpec for an unknown name, weights that do not fit, inputs that the architecture cannot take, and an
    unknown number of classes; StorageUnavailable if pretrained weights cannot be downloaded.
    """
    rescale = job.data is None or job.data.preprocess == "auto"
    inputs = [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)} for spec in example.inputs]
    arguments: dict[str, Any] = {"inputs": inputs, "classes": _classes(application, example)}
    preprocess, preprocess_name = None, None
    if application.name in ("mlp", "cnn"):
        _check_mlp_or_cnn(application, example)
        arguments |= {"rescale": rescale}
        builder = application.name
        model = (mlp if builder == "mlp" else cnn)(keras.module, **arguments)
    else:
        _check_pretrained(application.name, keras, example)
        arguments |= {"name": application.name, "freeze_base": bool(application.freeze_base)}
        builder = "pretrained"
        model = _pretrained(keras, application, arguments)
        if rescale:
            preprocess, preprocess_name = _preprocess(application.name, keras, example, notice)
    if application.weights not in (None, "none", "imagenet"):
        _load_weights(model, application.weights)
    _normalize_over_replicas(job, keras, model, notice)
    return BuiltApplication(model, preprocess, preprocess_name, {"builder": builder, "arguments": arguments})


def names(keras: Keras) -> list[str]:
    """Return the names of all applications that this generation of Keras can build."""
    catalogue = keras.module.applications
    return ["mlp", "cnn", *(name for name in dir(catalogue) if inspect.isfunction(getattr(catalogue, name)))]


def _classes(application: Application, example: ExampleSpec) -> int:
    if application.classes is not None:
        return application.classes
    if example.classes:
        return len(example.classes)
    raise InvalidSpec(
        "spec.program.application.classes",
        "missing, and the data's manifest names no classes",
        next_step="Give the number of classes.",
    )


def _image(name: str, example: ExampleSpec) -> tuple[int | None, ...]:
    """Return the shape of the only input, which must be an image."""
    if len(example.inputs) == 1 and len(example.inputs[0].shape) in (2, 3) and example.inputs[0].dtype != "string":
        return example.inputs[0].shape
    inputs = ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in example.inputs)
    raise InvalidSpec(
        _NAME,
        f"{name!r} takes one image and the inputs are {inputs}",
        expected="one feature of shape [height, width, channels]",
        next_step="Choose mlp, or write a function program.",
    )


def _check_mlp_or_cnn(application: Application, example: ExampleSpec) -> None:
    if application.freeze_base:
        raise InvalidSpec(
            "spec.program.application.freezeBase",
            f"true with {application.name!r}, which has no base",
            expected="false",
        )
    if application.name == "cnn":
        shape = _image("cnn", example)
        if shape[2:] == (None,) or (len(shape) == 2 and None in shape):
            raise InvalidSpec("spec.data.features", f"cnn needs a known number of channels, not shape {list(shape)}")
        return
    for spec in example.inputs:
        if spec.dtype == "string" or None in spec.shape:
            raise InvalidSpec(
                "spec.data.features",
                f"mlp cannot take {spec.name!r}, {spec.dtype} of shape {list(spec.shape)}",
                expected="numbers of a fixed shape",
                next_step="Give images a resize, or write a function program.",
            )


def _check_pretrained(name: str, keras: Keras, example: ExampleSpec) -> None:
    known = names(keras)
    if name not in known:
        hint = nearest(name, known) or "Any model of keras.applications, mlp and cnn are known."
        raise InvalidSpec(_NAME, f"{name!r} is not in {keras.version}'s applications", next_step=hint)
    shape = _image(name, example)
    if len(shape) != 3 or shape[2] is None:
        raise InvalidSpec(
            "spec.data.features",
            f"{name!r} needs images with channels, not shape {list(shape)}",
            expected="[height, width, channels]",
        )


def _pretrained(keras: Keras, application: Application, arguments: Mapping[str, Any]) -> Any:
    imagenet = "imagenet" if application.weights == "imagenet" else None
    try:
        return pretrained(keras.module, **arguments, weights=imagenet)
    except ValueError as error:
        raise InvalidSpec(
            "spec.data.features",
            f"{application.name} cannot be built for these images: {error}",
            next_step="Give the feature `resize: [224, 224]`, and 3 channels for imagenet's weights.",
        ) from None
    except Exception as error:
        if "fetch failure" not in str(error):
            raise
        raise StorageUnavailable(
            _WEIGHTS,
            f"imagenet's weights cannot be downloaded: {error}",
            next_step="Fetch that file where there is internet, and give its path or gs:// URI as weights.",
        ) from error


def _preprocess(
    name: str, keras: Keras, example: ExampleSpec, notice: Callable[[str, str], None]
) -> tuple[Callable[[Any], Any], str]:
    """Return the architecture's published preprocessing; if the model contains it, it only converts the dtype."""
    if example.inputs[0].shape[2] != 3:
        notice("Preprocess", f"{name}'s own preprocessing is for 3 channels; these images are scaled to [-1, 1]")
        return _scale, _SCALED
    module = sys.modules[getattr(keras.module.applications, name).__module__]
    label = f"keras.applications.{module.__name__.rsplit('.', 1)[-1]}.preprocess_input"
    return preprocess_by_label(label, keras), label


def preprocess_by_label(label: str, keras: Keras) -> Callable[[Any], Any]:
    """Return the preprocessing of a batch of images that model.json calls `label`."""
    if label == _SCALED:
        return _scale
    published = getattr(keras.module.applications, label.split(".")[-2]).preprocess_input
    return lambda images: published(tf.cast(images, tf.float32))


def _scale(images: Any) -> Any:
    return tf.cast(images, tf.float32) / 127.5 - 1.0


def _load_weights(model: Any, uri: str) -> None:
    """Load weights of the whole model, as `export` writes them, or of the base only, as in keras.applications."""
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        file = Path(folder) / PurePosixPath(uri).name
        try:
            storage.download(uri, file)
        except Problem as problem:
            raise InvalidSpec(_WEIGHTS, f"{uri}: {problem.found}") from None
        base = model.__class__(model.input, model.layers[-2].output)
        for target in (model, base):
            before = model.get_weights()
            try:
                with warnings.catch_warnings():
                    # Keras 3 only warns about layers without weights in the file.
                    warnings.simplefilter("error", UserWarning)
                    target.load_weights(str(file))
            except (UserWarning, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                model.set_weights(before)
                reason = str(error)
            else:
                return
    raise InvalidSpec(_WEIGHTS, f"{uri} does not fit {model.name}: {reason}", expected="weights of this architecture")


def _normalize_over_replicas(job: ResolvedJob, keras: Keras, model: Any, notice: Callable[[str, str], None]) -> None:
    """Synchronize BatchNormalization over the global batch; send a notice if XLA prevents it."""
    layers = [
        layer
        for layer in keras.layers(model)
        if isinstance(layer, keras.module.layers.BatchNormalization) and layer.trainable
    ]
    if job.replicas == 1 or not layers:
        return
    # XLA cannot compile a step with a synchronized layer, which costs a large model more than synchronization gains.
    if job.jit_compile != "Never":
        notice("BatchNormalization", f"{len(layers)} BatchNormalization layers see each replica's own examples only")
        return
    for layer in layers:
        layer.synchronized = True
        if keras.legacy:
            layer.fused = False
