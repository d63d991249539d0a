"""Image files: those of a folder, and their content. JPEG and PNG are kept unless resized, others become PNG."""

from __future__ import annotations

import io
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from mptraining_api.problems import InvalidData
from mptraining_records.convert.files import Content
from mptraining_records.storage import storage
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.features import Decode

if TYPE_CHECKING:
    from PIL import Image

IMAGE = "image"
_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))


class ListedFile(NamedTuple):
    """A file below a folder; `path` is relative to the folder."""

    uri: str
    path: str


def list_folder(uri: str) -> list[ListedFile]:
    """List every file below the folder, sorted by path. Raises InvalidData if there is none."""
    root = uri.rstrip("/") if storage.is_remote(uri) else str(storage.local_path(uri))
    found = [ListedFile(each.uri, each.uri.removeprefix(root).strip("/")) for each in storage.list_objects(uri)]
    if not found:
        raise InvalidData(uri, "no file in this folder")
    return found


def is_image(path: str) -> bool:
    """Return whether the name of the file is that of an image."""
    name = PurePosixPath(path)
    return not name.name.startswith(".") and name.suffix.lower() in _SUFFIXES


def load(uri: str, size: tuple[int, int] | None) -> Content:
    """Return the encoded image, after decoding it once; raises InvalidData if it cannot be decoded."""
    from PIL import Image, UnidentifiedImageError

    content = storage.read(uri)
    kind = features.image_kind(content)
    try:
        with Image.open(io.BytesIO(content)) as image:
            if kind is None or size:
                content, kind = _encode(image, kind, size)
            else:
                # Decoding at an eighth of the size finds a damaged JPEG in a third of the time.
                image.draft(None, (image.width // 8, image.height // 8))
                image.load()
        return Content(content, kind, features.image_shape(content))
    except UnidentifiedImageError as error:
        raise _damaged(uri, "no image format is recognized") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _damaged(uri, str(error)) from error


def _damaged(uri: str, cause: str) -> InvalidData:
    return InvalidData(
        uri,
        f"a damaged image: {cause}",
        next_step="Repair or remove it, then convert again; or skip such images with --bad-images Skip",
    )


def _encode(image: Image.Image, kind: Decode | None, size: tuple[int, int] | None) -> tuple[bytes, Decode]:
    """Encode the image as JPEG if it was one, else as PNG, resized to (height, width)."""
    from PIL import Image

    changed = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")
    if size:
        changed = changed.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    if kind == "jpeg":
        changed.save(content, "JPEG", quality=95)
    else:
        changed.save(content, "PNG")
    return content.getvalue(), kind or "png"
