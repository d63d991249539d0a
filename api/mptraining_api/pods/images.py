"""References of container images."""

from __future__ import annotations

import re
from dataclasses import dataclass

DOCKER = "docker.io"
DOCKER_ALIASES = ("index.docker.io", "registry-1.docker.io")
# Grammar of distribution/reference, regexp.go: a lower-case path, with single separators between letters and digits.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
# For RE2 too, in CEL.
IMAGE_PATTERN = (
    rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>[\w+.-]+:[0-9a-f]{32,}))?"
)
LOCATION_PATTERN = rf"{_HOST}(?:/{_PART})*"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """`repository` begins with the registry's host; `tag` is empty if there is a digest or no tag."""

    repository: str
    tag: str = ""
    digest: str = ""


def parse_image(text: str) -> ImageReference:
    """Parse an image name as a container runtime does. Raises ValueError if it is not an image name."""
    parts = re.fullmatch(IMAGE_PATTERN, text, re.ASCII)
    if parts is None:
        raise ValueError(f"{text!r} is no image, such as registry.example.com/team/trainer:1")
    digest = parts["digest"] or ""
    return ImageReference(_repository(parts["name"]), "" if digest else parts["tag"] or "", digest)


def has_moving_tag(text: str) -> bool:
    """Return whether the tag is `latest` or missing: the kubelet pulls it for each pod, and may get another image."""
    try:
        image = parse_image(text)
    except ValueError:
        # No container runtime pulls it; the kubelet says so.
        return False
    return not image.digest and image.tag in ("", "latest")


def parse_location(text: str) -> str:
    """Return the full name of a registry or of a folder in one. Raises ValueError for other text, such as a URL."""
    text = text.rstrip("/")
    if re.fullmatch(LOCATION_PATTERN, text, re.ASCII) is None:
        raise ValueError(f"{text!r} is no registry, such as docker.io or registry.example.com/team")
    host, _, path = text.partition("/")
    return "/".join(part for part in (_host(host), path) if part)


def is_in_registry(image: ImageReference, location: str) -> bool:
    """Return whether the image is below the registry or folder `location`, as returned by `parse_location`."""
    return image.repository.startswith(f"{location}/")


def matches(image: ImageReference, allowed: ImageReference) -> bool:
    """Return whether `allowed` covers the image: every tag if it has none, else exactly its tag or digest."""
    if image.repository != allowed.repository:
        return False
    if allowed.digest:
        return image.digest == allowed.digest
    # An image with a digest matches no allowed tag, because the digest may be that of another image.
    return not allowed.tag or (not image.digest and (image.tag or "latest") == allowed.tag)


def _repository(name: str) -> str:
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        host, path = _host(first), rest
    else:
        host, path = DOCKER, name
    if host == DOCKER and "/" not in path:
        path = f"library/{path}"
    return f"{host}/{path}"


def _host(host: str) -> str:
    host = host.lower()
    return DOCKER if host in DOCKER_ALIASES else host
