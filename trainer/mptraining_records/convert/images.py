"""Image files: those of a folder, and their content as JPEG or PNG with the pixels that Pillow shows."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.features import Feature, StoredImage
from mptraining_storage import storage

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

IMAGE = "image"
# fmt: off
_SUFFIXES = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".avif", ".heic", ".heif", ".jp2", ".j2k", ".ico", ".tga",
))
# Members of Image.Transpose that undo the EXIF orientations 2 to 8.
_TURNS = (
    "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90",
)
# Errors of Pillow's readers for damaged files, in addition to DecompressionBombError.
_DAMAGED = (
    OSError, SyntaxError, ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, EOFError, struct.error,
)
# fmt: on
# Tags of EXIF and TIFF.
_ORIENTATION, _BITS_PER_SAMPLE = 274, 258
_TRANSPARENT = "with transparency, which a job drops because other images have none"


class _UnknownRange(OSError):
    """Pixels that are no brightness from black to white."""

    def __init__(self, pixels: str) -> None:
        super().__init__(f"{pixels}, of which black and white are not known; save 8 or 16 bits, or arrays as .npz")


class Content(NamedTuple):
    """The bytes to store; of an image also what they are, and what was changed, as phrases after "3 images"."""

    stored: bytes
    image: StoredImage | None = None
    notes: tuple[str, ...] = ()


@dataclass
class ImageColumn:
    """The images of a column that were read, and the number of rows by what was changed in them."""

    images: set[StoredImage] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)

    def add(self, row: Sequence[Content]) -> None:
        """Add the contents of a row, if they are images."""
        self.images |= {content.image for content in row if content.image is not None}
        self.changes.update(dict.fromkeys((note for content in row for note in content.notes), 1))

    def feature(self, name: str, *, is_label: bool) -> Feature | None:
        """Return the feature of these images; None without images."""
        return features.image_feature(name, self.images, is_label=is_label) if self.images else None

    def report(self, feature: Feature) -> list[str]:
        """Return one line for each kind of change, with the number of rows."""
        return [
            f"{feature.name}: {count:,} {'image' if count == 1 else 'images'} {note}"
            for note, count in self.changes.items()
            if note != _TRANSPARENT or feature.shape[-1] != 4
        ]


class ListedFile(NamedTuple):
    """A file below a folder; `path` is relative to the folder."""

    uri: str
    path: str

    @property
    def folder(self) -> str:
        """The first folder of the path, empty for a file in the folder itself."""
        return self.path.partition("/")[0] if "/" in self.path else ""

    @property
    def stem(self) -> str:
        """The path without the suffix."""
        return str(PurePosixPath(self.path).with_suffix(""))


def list_folder(uri: str) -> list[ListedFile]:
    """List every file below the folder, sorted by path. Raises InvalidData if there is none."""
    root = uri.rstrip("/") if storage.is_remote(uri) else str(storage.local_path(uri))
    listed = [ListedFile(file.uri, file.uri.removeprefix(root).strip("/")) for file in storage.list_objects(uri)]
    if not listed:
        raise InvalidData(uri, "no file in this folder", expected="JPEG or PNG files, or sub-folders with .txt files")
    return listed


def is_image(path: str) -> bool:
    """Return whether the name of the file is that of an image."""
    name = PurePosixPath(path)
    return not name.name.startswith(".") and name.suffix.lower() in _SUFFIXES


def is_encoded(content: bytes) -> bool:
    """Return whether the bytes begin as an image in a format that tables of images use."""
    begins = content.startswith((b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"))
    return begins or content[8:12] in (b"WEBP", b"avif") or features.image_kind(content) is not None


def load(uri: str, size: tuple[int, int] | None, *, is_label: bool = False) -> Content:
    """Return the image as `prepare` does; raises InvalidData if it cannot be converted."""
    try:
        return prepare(storage.read(uri), size, is_label=is_label)
    except OSError as error:
        step = "Repair or remove it, then convert again; or skip such images with --bad-images skip"
        raise InvalidData(uri, str(error), next_step=step) from error


def prepare(content: bytes, size: tuple[int, int] | None = None, *, is_label: bool) -> Content:
    """Return the image as JPEG or PNG with the pixels that Pillow shows, resized to (height, width) if given.

    JPEG and PNG that TensorFlow decodes to these pixels are kept. The pixels of a label are class numbers, unless it is
    a JPEG: those of a palette are stored instead of its colours, and they are not interpolated. Raises OSError with the
    cause if the image cannot be decoded, or the range of its pixels is not known.
    """
    from PIL import Image, UnidentifiedImageError

    kind = features.image_kind(content)
    is_label = is_label and kind != "jpeg"
    notes: list[str] = []
    try:
        if kind and (fault := features.image_fault(content)):
            raise OSError(fault)
        with Image.open(io.BytesIO(content)) as image:
            bits = _bits(image, content)
            # The further frames of a JPEG are previews.
            if kind != "jpeg" and getattr(image, "is_animated", False):
                notes.append("with several frames, the first of which is stored")
            orientation = _orientation(image)
            if kind is None:
                # Only then ICO knows its size, and a TIFF is turned.
                image.load()
            upright: Image.Image = image
            if orientation in range(2, 9):
                notes.append("turned upright by EXIF orientation")
                turn = Image.Transpose[_TURNS[orientation - 2]]
                upright = image if image.format == "TIFF" else image.transpose(turn)
            changed = _class_numbers(upright, notes) if is_label else upright
            if kind is None or size or changed is not image:
                changed = _plain(changed)
                if size:
                    how = Image.Resampling.NEAREST if is_label else Image.Resampling.BILINEAR
                    changed = changed.resize((size[1], size[0]), how)
                # Pillow would write its transparent colour.
                changed.info = {}
                encoded = io.BytesIO()
                # PNG has no such settings.
                changed.save(encoded, kind or "png", quality=95, subsampling=0)
                content = encoded.getvalue()
    except _UnknownRange:
        raise
    except UnidentifiedImageError as error:
        raise OSError("a damaged image, or of a format that Pillow does not read, such as HEIC") from error
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise OSError(f"a damaged image: {error}") from error
    stored = features.stored_image(content)
    assert stored is not None
    if bits > 8 and stored.bits == 8:
        notes.append("scaled from 16 bits to 8")
    elif bits > 8 and not is_label:
        notes.append("kept in 16 bits, of which a job decodes 8 unless data.features has dtype: uint16")
    if stored.shape[-1] == 4:
        notes.append(_TRANSPARENT)
    return Content(content, stored, tuple(notes))


def _orientation(image: Image.Image) -> int:
    """Return the orientation in the EXIF data, 1 without one; damaged EXIF data is no damaged image."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except _DAMAGED:
        return 1


def _bits(image: ImageFile, content: bytes) -> int:
    """Return the bits of a value in the file, of which Pillow may keep 8."""
    if image.format == "PNG":
        return content[24]
    if image.mode.startswith("I"):
        return 16
    if image.format == "PPM" and isinstance(image.tile[0][3], tuple):
        # The mode and the largest value.
        return int(image.tile[0][3][1]).bit_length()
    return int(max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))))


def _class_numbers(image: Image.Image, notes: list[str]) -> Image.Image:
    """Return the class numbers of a mask as an image of one channel; any other image as it is."""
    from PIL import Image

    if image.mode in ("P", "PA"):
        notes.append("with a palette, whose indices are stored instead of its colours")
        return Image.fromarray(np.array(image.getchannel(0)))
    if image.mode in ("1", "L", "LA", "I;16") and image.has_transparency_data:
        notes.append("with transparency, which is dropped")
        numbers = image.getchannel(0)
        numbers.info = {}
        return numbers
    return image


def _plain(image: Image.Image) -> Image.Image:
    """Return the image in a mode that Pillow can interpolate and write as PNG."""
    if image.mode == "F":
        values = np.asarray(image)
        raise _UnknownRange(f"its pixels are floats from {values.min():g} to {values.max():g}")
    if image.mode.startswith("I"):
        numbers = image.convert("I")
        low, high = np.asarray(numbers).min(), np.asarray(numbers).max()
        if low < 0 or high > 0xFFFF:
            raise _UnknownRange(f"its pixels are integers from {low} to {high}")
        return numbers.convert("I;16")
    grey = image.mode in ("1", "L", "LA", "La")
    return image.convert(("L" if grey else "RGB") + "A" * image.has_transparency_data)
