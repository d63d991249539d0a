"""SHA256SUMS: the digests of all files of a release, in the format of `sha256sum --check`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

FILE = "SHA256SUMS"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder by its name."""
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def text(of: Mapping[str, str]) -> str:
    """Return the lines of the file, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(of.items()))
