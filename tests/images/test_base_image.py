"""The base of a release cannot be exchanged: its digest is part of its name."""

from __future__ import annotations

import pytest

from kind.base_image import require_digest
from kind.engine import Failed


@pytest.mark.parametrize(
    "reference",
    [None, "", "python:3.11-slim", "python@sha256:abc", "python:3.11-slim@sha512:" + 64 * "0", "@sha256:" + 64 * "0"],
)
def test_a_base_without_a_digest_is_refused_with_the_command_that_prints_it(reference: str | None) -> None:
    with pytest.raises(Failed, match=r"MPTRAINING_BASE_IMAGE.*docker buildx imagetools inspect"):
        require_digest(reference)


def test_a_base_with_a_digest_is_taken() -> None:
    reference = "docker.io/library/python:3.11-slim@sha256:" + 64 * "0"
    assert require_digest(reference) == reference
