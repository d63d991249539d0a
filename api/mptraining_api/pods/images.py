"""References of container images."""

from __future__ import annotations


def has_moving_tag(image: str) -> bool:
    """Return whether the tag is `latest` or missing: the kubelet pulls it for each pod, and may get another image."""
    repository, _, digest = image.partition("@")
    tag = repository.rpartition("/")[2].partition(":")[2]
    return not digest and tag in ("", "latest")
