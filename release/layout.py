"""OCI image layouts: a folder of blobs by digest, with one manifest; written here so that its digest is known before
anything is pushed.

https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
TITLE = "org.opencontainers.image.title"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Blob:
    """A blob that a manifest names: its bytes, or the file that has them."""

    media_type: str
    content: bytes | Path
    title: str = ""

    @property
    def digest(self) -> str:
        if isinstance(self.content, bytes):
            return f"sha256:{hashlib.sha256(self.content).hexdigest()}"
        with self.content.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def descriptor(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return plain | ({"annotations": {TITLE: self.title}} if self.title else {})


def manifest(
    config: Blob, layers: Sequence[Blob], *, artifact_type: str = "", annotations: Mapping[str, str] | None = None
) -> bytes:
    """Return the manifest of an artifact; the same blobs give the same bytes."""
    made: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST}
    if artifact_type:
        made["artifactType"] = artifact_type
    made |= {"config": config.descriptor(), "layers": [each.descriptor() for each in layers]}
    if annotations:
        made["annotations"] = dict(sorted(annotations.items()))
    return json.dumps(made, separators=(",", ":")).encode()


def write(folder: Path, manifest_text: bytes, blobs: Mapping[str, bytes | Path]) -> str:
    """Write a layout with one manifest and return its digest. `blobs` by digest; files are linked where possible."""
    digest = f"sha256:{hashlib.sha256(manifest_text).hexdigest()}"
    shutil.rmtree(folder, ignore_errors=True)
    place = folder / "blobs" / "sha256"
    place.mkdir(parents=True)
    for name, content in {**blobs, digest: manifest_text}.items():
        target = place / name.removeprefix("sha256:")
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            _link(content, target)
    entry = {"mediaType": MANIFEST, "digest": digest, "size": len(manifest_text)}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "release"}
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}))
    return digest


def artifact(
    folder: Path,
    config: Blob,
    layers: Sequence[Blob],
    *,
    artifact_type: str = "",
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Write the layout of an artifact and return its digest."""
    made = manifest(config, layers, artifact_type=artifact_type, annotations=annotations)
    return write(folder, made, {each.digest: each.content for each in (config, *layers)})


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        # On another file system.
        shutil.copyfile(source, target)
