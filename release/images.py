"""The images as OCI layouts: what `make images` builds, ready to be pushed with the digests that a cluster sees."""

from __future__ import annotations

import os
from pathlib import Path

from kind import images as built
from kind.engine import Engine
from release import layout
from release.plan import Image


def build(engine: Engine, image: Image, folder: Path, *, base: str, epoch: int) -> str:
    """Build one image, write its layout and return its digest. `epoch`: the commit's time, of the wheel's files."""
    os.environ |= {"VARIANT": image.variant, "SOURCE_DATE_EPOCH": str(epoch)}
    if base:
        os.environ["MPTRAINING_BASE_IMAGE"] = base
    built.fill_context(image.variant)
    built.build(engine, image.target, image.variant)
    made = built.export(engine, image.target)
    blobs: dict[str, bytes | Path] = {**made.layers, f"sha256:{made.config.name}": made.config}
    return layout.write(folder, made.manifest, blobs)


def wheel_inside() -> Path:
    """The wheel that the images install."""
    (found,) = built.CONTEXT.glob("*.whl")
    return found
