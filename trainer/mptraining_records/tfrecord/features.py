"""Features of a data set: name, dtype, shape and encoding of each tensor; their inference from records; the label."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

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
# TensorFlow decodes no image without its end, which Pillow may not read.
_ENDS: dict[Decode, bytes] = {"jpeg": b"\xff\xd9", "png": b"\0\0\0\0IEND\xaeB`\x82"}
# The numbers of channels to which TensorFlow decodes each format that it knows.
_FORMATS = {"JPEG": (1, 3), "MPO": (1, 3), "PNG": (1, 3, 4), "GIF": (3,), "BMP": (3,)}
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
    labels = LABELS if label is None else (label,)
    inferred = [_infer_one(name, [features[name] for features in parsed], is_label=name in labels) for name in names]
    for name in lists:
        steps = [step for features in sequences for step in features.get(name, ())]
        of_step = _infer_one(name, steps, is_label=name in labels) if steps else Feature(name=name, dtype="float32")
        inferred.append(of_step.model_copy(update={"shape": (None, *of_step.shape), "sequence": True}))
    return tuple(inferred)


def undecodable(records: Sequence[bytes]) -> dict[int, str]:
    """Return why features cannot be inferred from some of the records, by position.

    They are not an Example, have a damaged image, or lack a feature that most of the records have.
    """
    causes: dict[int, str] = {}
    names: dict[int, set[str]] = {}
    for position, record in enumerate(records):
        try:
            names[position] = {feature.name for feature in infer([record])}
        except InvalidData as problem:
            causes[position] = f"{problem.where}: {problem.found}".removeprefix("record: ")
    counts = Counter(name for present in names.values() for name in present)
    usual = sorted(name for name, count in counts.items() if 2 * count > len(names))
    for position, present in names.items():
        absent = [name for name in usual if name not in present]
        if absent:
            causes[position] = f"feature {absent[0]!r} is missing"
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


class StoredImage(NamedTuple):
    """Encoding of an image, its shape [height, width, channels] as TensorFlow decodes it, and the bits of a value."""

    kind: Decode
    shape: tuple[int, int, int]
    bits: int


def image_kind(content: bytes) -> Decode | None:
    """Return "jpeg" or "png" by the first bytes of the content, else None."""
    return next((kind for kind, magic in _MAGIC.items() if content.startswith(magic)), None)


def stored_image(content: bytes) -> StoredImage | None:
    """Return what the header of a JPEG or PNG image says; None for other content.

    An image with transparency has 4 channels, a grey one has 1, all others have 3. Raises OSError if Pillow cannot read
    the header, or refuses the image for its size.
    """
    from PIL import Image

    kind = image_kind(content)
    if kind is None:
        return None
    try:
        with Image.open(io.BytesIO(content)) as image:
            channels = 4 if image.has_transparency_data else 1 if image.mode[0] in "1LI" else 3
            # The byte after the sizes in the header of a PNG.
            return StoredImage(kind, (image.height, image.width, channels), content[24] if kind == "png" else 8)
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(str(error)) from error


def image_fault(content: bytes, shape: Sequence[int | None] = ()) -> str | None:
    """Return why TensorFlow cannot decode the image to this shape; None if it can.

    Images are decoded by Pillow; one that it refuses for its size has no fault.
    """
    from PIL import Image, UnidentifiedImageError

    height, width, channels = tuple(shape[-3:]) or (None, None, None)
    try:
        kind = image_kind(content)
        if kind and _ENDS[kind] not in content:
            raise OSError("image file is truncated")
        if kind == "png":
            with Image.open(io.BytesIO(content)) as image:
                # The checksums.
                image.verify()
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "GIF", "BMP")) as image:
            image_format, mode, size = str(image.format), image.mode, (image.height, image.width)
            # Decoding at an eighth of the size finds a damaged JPEG in a third of the time.
            image.draft(None, (image.width // 8 or 1, image.height // 8 or 1))
            image.load()
    except Image.DecompressionBombError:
        return None
    except (OSError, SyntaxError, ValueError) as error:
        # Pillow's text names the object that holds the content.
        return "no image of a known format" if isinstance(error, UnidentifiedImageError) else str(error)
    channels = channels or 3
    unread = (image_format == "BMP" and mode != "RGB") or (mode == "CMYK" and channels == 1)
    if unread or channels not in _FORMATS.get(image_format, ()):
        return f"TensorFlow does not decode {image_format} ({mode}) to {channels} channels"
    if height not in (None, size[0]) or width not in (None, size[1]):
        return f"its size is {size[0]}x{size[1]}; expected {height or '?'}x{width or '?'}"
    return None


def _infer_one(name: str, lists: Sequence[tuple[Kind, Values]], *, is_label: bool) -> Feature:
    # TensorFlow's writers give an empty list no kind of its own choice.
    lists = [entry for entry in lists if len(entry[1])] or lists
    kinds = {kind for kind, _ in lists}
    lengths = {len(values) for _, values in lists}
    if len(kinds) > 1:
        raise InvalidData(f"feature {name!r}", "its kind varies: " + ", ".join(sorted(kinds)))
    kind, length = kinds.pop(), lengths.pop() if len(lengths) == 1 else None
    shape = () if length == 1 else (length,)
    if kind == "bytes":
        contents = [bytes(value) for _, values in lists for value in values]
        return _infer_bytes(name, shape, contents, is_label=is_label)
    return Feature(name=name, dtype="int64" if kind == "int64" else "float32", shape=shape)


def _infer_bytes(name: str, shape: tuple[int | None, ...], contents: Sequence[bytes], *, is_label: bool) -> Feature:
    if not contents or not all(map(image_kind, contents)):
        return (None if shape else _infer_tensor(name, contents)) or Feature(name=name, dtype="string", shape=shape)
    try:
        images = {stored for content in contents if (stored := stored_image(content))}
    except OSError as error:
        raise InvalidData(f"feature {name!r}", f"a damaged image: {error}") from error
    image = image_feature(name, images, is_label=is_label)
    return image.model_copy(update={"shape": (*shape, *image.shape)})


def _infer_tensor(name: str, contents: Sequence[bytes]) -> Feature | None:
    """Return the feature of serialized tensors of one dtype, whose first size may vary; None for other bytes."""
    headers = [tensor_proto.header(content) for content in contents]
    tensors = [header for header in headers if header is not None and header.whole]
    if len(tensors) < len(headers) or not tensors:
        return None
    dtypes, shapes = {header.dtype for header in tensors}, {header.shape for header in tensors}
    if len(dtypes) > 1 or len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
        return None
    shape = tensors[0].shape
    first: tuple[int | None, ...] = shape[:1] if len(shapes) == 1 else (None,)
    return Feature.model_validate(
        {"name": name, "dtype": tensors[0].dtype, "shape": (*first, *shape[1:]), "decode": "tensor"}
    )


def image_feature(name: str, images: Collection[StoredImage], *, is_label: bool) -> Feature:
    """Return the feature of these images. Labels keep 16 bits, other images are scaled to 8.

    TensorFlow's JPEG and PNG decoders each decode both formats, so that "png" also means a mixture.
    """
    heights, widths, channels = ({image.shape[axis] for image in images} for axis in range(3))
    return Feature(
        name=name,
        dtype="uint16" if is_label and any(image.bits == 16 for image in images) else "uint8",
        shape=(
            heights.pop() if len(heights) == 1 else None,
            widths.pop() if len(widths) == 1 else None,
            channels.pop() if len(channels) == 1 else 3,
        ),
        decode="jpeg" if all(image.kind == "jpeg" for image in images) else "png",
    )


LABELS = ("label", "labels", "y", "target", "class")


def choose_label(uri: str, names: list[str], label: str | None) -> str | None:
    """Return the name of the label: `label` if given, else the first of LABELS in `names`. Raises InvalidData."""
    if label is None:
        return next((name for name in LABELS if name in names), None)
    if label not in names:
        raise unknown_name(uri, f"no {label!r} in it", label, names)
    return label


def unknown_name(uri: str, mistake: str, name: str, names: Sequence[str]) -> InvalidData:
    """Return the error for a name that is none of `names`; it has the first 20 and the nearest of them."""
    return InvalidData(
        uri, mistake, expected="one of " + ", ".join(map(repr, names[:20])), next_step=nearest(name, names)
    )
