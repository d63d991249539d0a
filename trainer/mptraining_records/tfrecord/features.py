"""Features of a data set: name, dtype, shape and encoding of each tensor; their inference from records; the label."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from mptraining_api.problems import InvalidData, nearest
from mptraining_records.tfrecord import example, tensor_proto
from mptraining_records.tfrecord.example import Kind, Values

# fmt: off
Dtype = Literal[
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "float16", "bfloat16", "float32", "float64", "bool", "string",
]
# fmt: on
Decode = Literal["jpeg", "png", "raw", "tensor"]
IMAGES = frozenset({"jpeg", "png"})

_MAGIC: dict[Decode, bytes] = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_CHANNELS = {"1": 1, "L": 1, "I": 1, "I;16": 1, "LA": 2, "RGBA": 4}
_GIVE_FEATURES = "Describe the records in data.features"


class Feature(BaseModel):
    """One named tensor of every record.

    `shape` is that of the decoded tensor, None where a dimension varies. `decode` is the encoding of its single bytes
    value: an image format, "raw" for the tensor's own bytes, little-endian, in C order, or "tensor" for those of
    `tf.io.serialize_tensor`. An image with four dimensions is a list of images, one bytes value each. With `sequence`
    the feature is a feature list of a tf.train.SequenceExample: the first dimension are its steps, each of which has
    the values, or the single bytes value, of the others.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    dtype: Dtype
    shape: tuple[int | None, ...] = ()
    decode: Decode | None = None
    sequence: bool = False

    @property
    def limit(self) -> int | None:
        """The largest size of a variable first dimension, None without a limit."""
        return None

    @property
    def is_optional(self) -> bool:
        """Whether a record may have no such feature."""
        return is_variable(self.shape, self.decode)


def is_variable(shape: Sequence[int | None], decode: str | None) -> bool:
    """Return whether the first dimension is a number of values that varies; that of one image is its height."""
    return bool(shape) and shape[0] is None and (decode not in IMAGES or len(shape) == 4)


def infer(records: Sequence[bytes], label: str | None = None) -> tuple[Feature, ...]:
    """Infer the features of a data set, sorted by name, from its first records.

    One integer is an int64 scalar and several are a vector, whose length is None if it varies; other numbers are
    float32; JPEG and PNG bytes are an image (height and width None where they vary) or a list of them; bytes of
    `tf.io.serialize_tensor` are that tensor, other bytes a string. Feature lists of SequenceExamples have the shape of
    a step after None. Raises InvalidData if a feature is missing from a record, its kind varies, or there is no feature
    `label`.
    """
    if not records:
        raise InvalidData("data.features", "no record to infer them from")
    parsed = [example.parse(record) for record in records]
    sequences = [example.parse_sequences(record) for record in records]
    names = sorted({name for features in parsed for name in features})
    for number, features in enumerate(parsed):
        for name in names:
            if name not in features:
                raise InvalidData(
                    f"record {number}",
                    f"feature {name!r} is missing",
                    next_step=f"{_GIVE_FEATURES}; one with a default may be missing",
                )
    lists = sorted({name for features in sequences for name in features} - {*names})
    if label is not None and label not in (*names, *lists):
        raise InvalidData(
            "data.label",
            f"no feature {label!r} in the records",
            expected="one of " + ", ".join(map(repr, [*names, *lists])),
            next_step=nearest(label, [*names, *lists]),
        )
    found = [_infer_one(name, [features[name] for features in parsed]) for name in names]
    for name in lists:
        steps = [step for features in sequences for step in features.get(name, ())]
        one = _infer_one(name, steps) if steps else Feature(name=name, dtype="float32")
        found.append(one.model_copy(update={"shape": (None, *one.shape), "sequence": True}))
    return tuple(found)


def undecodable(records: Sequence[bytes]) -> dict[int, str]:
    """Return the causes, by place, of records from which no features can be inferred beside the others.

    They are not an Example, have a damaged image, or lack a feature that most of the records have.
    """
    causes: dict[int, str] = {}
    names: dict[int, set[str]] = {}
    for place, record in enumerate(records):
        try:
            names[place] = {feature.name for feature in infer([record])}
        except InvalidData as problem:
            causes[place] = f"{problem.where}: {problem.found}".removeprefix("record: ")
    found = Counter(name for each in names.values() for name in each)
    usual = sorted(name for name, count in found.items() if 2 * count > len(names))
    for place, present in names.items():
        absent = [name for name in usual if name not in present]
        if absent:
            causes[place] = f"feature {absent[0]!r} is missing"
    return causes


def describe(features: Sequence[Feature]) -> list[str]:
    """Return one line for the user about each feature: `image: uint8 [?, ?, 3] from jpeg`."""
    lines = []
    for feature in features:
        sizes = ", ".join("?" if size is None else str(size) for size in feature.shape)
        shape = f" [{sizes}]" if feature.shape else ""
        decode = f" from {feature.decode}" if feature.decode else ""
        sequence = ", a feature list" if feature.sequence else ""
        lines.append(f"{feature.name}: {feature.dtype}{shape}{decode}{sequence}")
    return lines


def image_kind(content: bytes) -> Decode | None:
    """Return "jpeg" or "png" by the first bytes of the content, else None."""
    return next((kind for kind, magic in _MAGIC.items() if content.startswith(magic)), None)


def image_shape(content: bytes) -> tuple[int, int, int]:
    """Return height, width and channels as TensorFlow decodes them (palette and CMYK images become RGB).

    Raises OSError if Pillow cannot read the header, or refuses the image for its size.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.height, image.width, _CHANNELS.get(image.mode, 3)
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(str(error)) from error


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
    # TensorFlow's writers give an empty list no kind of its own choice.
    found = [each for each in found if len(each[1])] or found
    kinds = {kind for kind, _ in found}
    lengths = {len(values) for _, values in found}
    if len(kinds) > 1:
        raise InvalidData(f"feature {name!r}", "its kind varies: " + ", ".join(sorted(kinds)))
    kind, length = kinds.pop(), lengths.pop() if len(lengths) == 1 else None
    shape = () if length == 1 else (length,)
    if kind == "bytes":
        return _infer_bytes(name, shape, [bytes(value) for _, values in found for value in values])
    return Feature(name=name, dtype="int64" if kind == "int64" else "float32", shape=shape)


def _infer_bytes(name: str, shape: tuple[int | None, ...], contents: Sequence[bytes]) -> Feature:
    kinds = {image_kind(content) for content in contents}
    if None in kinds or not kinds:
        return (None if shape else _infer_tensor(name, contents)) or Feature(name=name, dtype="string", shape=shape)
    try:
        shapes = {image_shape(content) for content in contents}
    except OSError as error:
        raise InvalidData(f"feature {name!r}", f"a damaged image: {error}") from error
    image = image_feature(name, {kind for kind in kinds if kind}, shapes)
    return image.model_copy(update={"shape": (*shape, *image.shape)})


def _infer_tensor(name: str, contents: Sequence[bytes]) -> Feature | None:
    """Return the feature of serialized tensors of one dtype, whose first size may vary; None for other bytes."""
    headers = [tensor_proto.header(content) for content in contents]
    found = [header for header in headers if header is not None and header.whole]
    if len(found) < len(headers) or not found:
        return None
    dtypes, shapes = {header.dtype for header in found}, {header.shape for header in found}
    if len(dtypes) > 1 or len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
        return None
    shape = found[0].shape
    first: tuple[int | None, ...] = shape[:1] if len(shapes) == 1 else (None,)
    return Feature.model_validate(
        {"name": name, "dtype": found[0].dtype, "shape": (*first, *shape[1:]), "decode": "tensor"}
    )


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
