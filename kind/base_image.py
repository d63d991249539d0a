"""The base of the three images: Debian with Python.

A release names the public image by its digest (docs/security.md). Where no registry is in reach, the image is made of
Debian's packages: two builds on one machine have the same base, two machines have two.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from kind.engine import ROOT, Engine, Failed, finish, say

LOCAL = "localhost/mptraining-base:bookworm"
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


def chosen(engine: Engine, folder: Path) -> str | None:
    """Return the reference for the Dockerfile's BASE, or None for its own; make Podman's in `folder` if it is missing.

    MPTRAINING_BASE_IMAGE in the environment outranks both.
    """
    named = os.environ.get("MPTRAINING_BASE_IMAGE")
    if named:
        return named
    if engine.name != "podman":
        return None
    if not engine.has_image(LOCAL):
        say("making a base image of Debian packages, two minutes")
        engine.run(str(ROOT / "images" / "base.sh"), str(folder), LOCAL)
    return LOCAL


def require_digest(reference: str | None) -> str:
    """Return the reference. Raises Failed where a tag, which may name another image tomorrow, is all that it has."""
    if reference is None or not _DIGEST.fullmatch(reference):
        raise Failed(
            f"the base image {reference or 'of the Dockerfile'} has no digest: a release needs NAME@sha256:DIGEST in "
            "MPTRAINING_BASE_IMAGE. `docker buildx imagetools inspect python:3.11-slim` prints it"
        )
    return reference


def main() -> None:
    """`python -m kind.base_image [REFERENCE]`: exit code 1 and the reason for a reference without a digest."""
    named = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MPTRAINING_BASE_IMAGE")
    say(f"base image {require_digest(named)}")


if __name__ == "__main__":
    finish(main)
