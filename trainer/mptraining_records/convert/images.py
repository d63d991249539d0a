"""Image folder as a source of rows; its sub-folders are the classes, in the order of their names."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from mptraining_api.problems import InvalidData
from mptraining_records.storage import storage
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Decode, Feature

if TYPE_CHECKING:
    from PIL import Image

_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
_IMAGE = "image"
_THREADS = 8
_AHEAD = 32


class _Image(NamedTuple):
    content: bytes
    kind: Decode
    shape: tuple[int, int, int]


class Folder:
    """A folder of images. JPEG and PNG are stored unchanged unless `size` (height, width) is given; others as PNG."""

    def __init__(self, uri: str, *, label: str | None, size: tuple[int, int] | None) -> None:
        objects = storage.list_objects(uri)
        root = uri.rstrip("/") if storage.is_remote(uri) else str(storage.local_path(uri))
        paths = [(each.uri, each.uri.removeprefix(root).strip("/").split("/")) for each in objects]
        chosen = [(uri, path) for uri, path in paths if _is_image(path)]
        if not chosen:
            raise InvalidData(uri, "no image in this folder", expected="sub-folders of JPEG or PNG files")
        loose = [path for _, path in chosen if len(path) == 1]
        if loose and len(loose) < len(chosen):
            raise InvalidData(
                uri,
                f"images beside the sub-folders, such as {loose[0][0]!r}",
                expected="every image in the sub-folder of its class",
            )
        self.count = len(chosen)
        self.classes = None if loose else tuple(sorted({path[0] for _, path in chosen}))
        self.label = None if loose else label or "label"
        skipped = len(paths) - len(chosen)
        self.notices = (f"{skipped} files that are not images are skipped",) if skipped else ()
        self._images = chosen
        self._size = size
        self._kinds: set[Decode] = set()
        self._shapes: set[tuple[int, int, int]] = set()

    def rows(self) -> Iterator[Mapping[str, Encodable]]:
        numbers = {name: number for number, name in enumerate(self.classes or ())}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="images") as pool:
            pending = deque[Future[_Image]]()
            try:
                for at, (_, path) in enumerate(self._images):
                    for uri, _ in self._images[at + len(pending) : at + _AHEAD]:
                        pending.append(pool.submit(_load, uri, self._size))
                    image = pending.popleft().result()
                    self._kinds.add(image.kind)
                    self._shapes.add(image.shape)
                    row: dict[str, Encodable] = {_IMAGE: image.content}
                    if self.label:
                        row[self.label] = numbers[path[0]]
                    yield row
            finally:
                pool.shutdown(cancel_futures=True)

    def features(self) -> tuple[Feature, ...]:
        image = features.image_feature(_IMAGE, self._kinds, self._shapes)
        return (image, Feature(name=self.label, dtype="int64")) if self.label else (image,)


def _load(uri: str, size: tuple[int, int] | None) -> _Image:
    """Return the encoded image, after decoding it once; raises InvalidData if it cannot be decoded."""
    from PIL import Image

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
        return _Image(content, kind, features.image_shape(content))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidData(
            uri, f"a damaged image: {error}", next_step="Repair or remove it, then convert again"
        ) from error


def _is_image(path: list[str]) -> bool:
    return not path[-1].startswith(".") and PurePosixPath(path[-1]).suffix.lower() in _SUFFIXES


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
