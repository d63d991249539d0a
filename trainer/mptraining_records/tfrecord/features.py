"""Features of a data set: name, dtype, shape and encoding of each tensor; their inference from records; the label."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from mptraining_api.problems import InvalidData, nearest
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.example import Kind, Values

Dtype = Literal["uint8", "int32", "int64", "float16", "float32", "float64", "bool", "string"]
Decode = Literal["jpeg", "png", "raw"]

_MAGIC: dict[Decode, bytes] = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_CHANNELS = {"1": 1, "L": 1, "I": 1, "I;16": 1, "LA": 2, "RGBA": 4}
_GIVE_FEATURES = "Describe the records in data.features"


class Feature(BaseModel):
    """One named tensor of every record.

    `shape` is that of the decoded tensor, None where a dimension varies. `decode` is the encoding of its single bytes
    value: an image format, or "raw" for the tensor's own bytes, little-endian, in C order.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    dtype: Dtype
    shape: tuple[int | None, ...] = ()
    decode: Decode | None = None


def infer(records: Sequence[bytes], label: str | None = None) -> tuple[Feature, ...]:
    """Infer the features of a data set, sorted by name, from its first records.

    One integer is an int64 scalar and several are a vector of fixed length; other numbers are float32; JPEG and PNG
    bytes are an image (height and width None where they vary); other bytes are a string. Raises InvalidData if a
    feature is missing from a record, its kind or length varies, or there is no feature `label`.
    """
    if not records:
        raise InvalidData("data.features", "no record to infer them from")
    parsed = [example.parse(record) for record in records]
    names = sorted({name for features in parsed for name in features})
    for number, features in enumerate(parsed):
        for name in names:
            if name not in features:
                raise InvalidData(f"record {number}", f"feature {name!r} is missing", next_step=_GIVE_FEATURES)
    if label is not None and label not in names:
        raise InvalidData(
            "data.label",
            f"no feature {label!r} in the records",
            expected="one of " + ", ".join(map(repr, names)),
            next_step=nearest(label, names),
        )
    return tuple(_infer_one(name, [features[name] for features in parsed]) for name in names)


def describe(features: Sequence[Feature]) -> list[str]:
    """Return one line for the user about each feature: `image: uint8 [?, ?, 3] from jpeg`."""
    lines = []
    for feature in features:
        sizes = ", ".join("?" if size is None else str(size) for size in feature.shape)
        shape = f" [{sizes}]" if feature.shape else ""
        decode = f" from {feature.decode}" if feature.decode else ""
        lines.append(f"{feature.name}: {feature.dtype}{shape}{decode}")
    return lines


def image_kind(content: bytes) -> Decode | None:
    """Return "jpeg" or "png" by the first bytes of the content, else None."""
    return next((kind for kind, magic in _MAGIC.items() if content.startswith(magic)), None)


def image_shape(content: bytes) -> tuple[int, int, int]:
    """Return height, width and channels as TensorFlow decodes them (palette and CMYK images become RGB).

    Raises OSError if Pillow cannot read the header.
    """
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.height, image.width, _CHANNELS.get(image.mode, 3)


def image_fault(content: bytes) -> str | None:
    """Return why Pillow cannot decode the whole image; None if it can, or refuses the image for its size."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
    except UnidentifiedImageError:
        # Its text names the object that holds the content.
        return "no image of a known format"
    except Image.DecompressionBombError:
        return None
    except (OSError, SyntaxError, ValueError) as error:
        return str(error)
    return None


def _infer_one(name: str, found: Sequence[tuple[Kind, Values]]) -> Feature:
    kinds = {kind for kind, _ in found}
    lengths = {len(values) for _, values in found}
    if len(kinds) > 1:
        raise InvalidData(f"feature {name!r}", "its kind varies: " + ", ".join(sorted(kinds)))
    if len(lengths) > 1:
        raise InvalidData(
            f"feature {name!r}",
            f"its length varies from {min(lengths)} to {max(lengths)}",
            expected="the same number of values in every record",
            next_step=_GIVE_FEATURES,
        )
    kind, length = kinds.pop(), lengths.pop()
    shape = () if length == 1 else (length,)
    if kind == "bytes":
        if length == 1:
            return _infer_bytes(name, [bytes(values[0]) for _, values in found])
        return Feature(name=name, dtype="string", shape=shape)
    return Feature(name=name, dtype="int64" if kind == "int64" else "float32", shape=shape)


def _infer_bytes(name: str, contents: Sequence[bytes]) -> Feature:
    kinds = {image_kind(content) for content in contents}
    if None in kinds:
        return Feature(name=name, dtype="string")
    try:
        shapes = {image_shape(content) for content in contents}
    except OSError as error:
        raise InvalidData(f"feature {name!r}", f"a damaged image: {error}") from error
    return image_feature(name, {kind for kind in kinds if kind}, shapes)


def image_feature(name: str, kinds: set[Decode], shapes: set[tuple[int, int, int]]) -> Feature:
    """Return the feature of images with these encodings and these shapes [height, width, channels].

    TensorFlow's JPEG and PNG decoders each decode both formats, so that "png" also means a mixture.
    """
    heights, widths, channels = ({shape[axis] for shape in shapes} for axis in range(3))
    return Feature(
        name=name,
        dtype="uint8",
        shape=(
            heights.pop() if len(heights) == 1 else None,
            widths.pop() if len(widths) == 1 else None,
            channels.pop() if len(channels) == 1 else 3,
        ),
        decode="jpeg" if kinds == {"jpeg"} else "png",
    )


LABELS = ("label", "labels", "y", "target", "class")


def choose_label(uri: str, names: list[str], label: str | None) -> str | None:
    """Return the name of the label: `label` if given, else the first of LABELS in `names`. Raises InvalidData."""
    if label is None:
        return next((name for name in LABELS if name in names), None)
    if label not in names:
        raise unknown_name(uri, f"no {label!r} in it", label, names)
    return label


def unknown_name(uri: str, found: str, name: str, names: Sequence[str]) -> InvalidData:
    """Return the error for a name that is none of `names`; it has the first 20 and the nearest of them."""
    return InvalidData(
        uri, found, expected="one of " + ", ".join(map(repr, names[:20])), next_step=nearest(name, names)
    )
