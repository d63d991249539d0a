"""Names of container images taken apart as container runtimes do it, so that a limit cannot be dodged by spelling.

    nginx                           docker.io/library/nginx:latest
    team/trainer:1                  docker.io/team/trainer:1
    registry:5000/trainer@sha256:…  registry:5000/trainer@sha256:…   (a tag beside a digest has no effect)

The first part is a registry when it holds a dot or a colon, or is `localhost` (distribution/reference, normalize.go).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DOCKER = "docker.io"
_DOCKER_TOO = ("index.docker.io", "registry-1.docker.io")
# distribution/reference, regexp.go: a path in small letters, with single separators between its letters and digits.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>[\w+.-]+:[0-9a-f]{{32,}}))?",
    re.ASCII,
)
_LOCATION = re.compile(rf"{_HOST}(?:/{_PART})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageReference:
    """`repository` begins with the registry's host; `tag` is empty where a digest decides, or nothing is said."""

    repository: str
    tag: str = ""
    digest: str = ""


def parse_image(text: str) -> ImageReference:
    """The image that a runtime would pull for this name. Raises ValueError for what is none."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no image, such as registry.example.com/team/trainer:1")
    digest = found["digest"] or ""
    return ImageReference(_repository(found["name"]), "" if digest else found["tag"] or "", digest)


def parse_location(text: str) -> str:
    """A registry, or a folder of one, that images may be in. Raises ValueError for what is none, such as a URL."""
    text = text.rstrip("/")
    if _LOCATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no registry, such as docker.io or registry.example.com/team")
    host, _, path = text.partition("/")
    return "/".join(part for part in (_host(host), path) if part)


def lies_in(image: ImageReference, location: str) -> bool:
    """Whether the image is below the registry or folder `location`, as `parse_location` gives it."""
    return image.repository.startswith(f"{location}/")


def matches(image: ImageReference, allowed: ImageReference) -> bool:
    """Whether the image is what `allowed` names: any tag of it where that says none, else exactly the one it says."""
    if image.repository != allowed.repository:
        return False
    if allowed.digest:
        return image.digest == allowed.digest
    # What a digest pulls need not be what the tag beside it, or that of the limit, stands for.
    return not allowed.tag or (not image.digest and (image.tag or "latest") == allowed.tag)


def _repository(name: str) -> str:
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        host, path = _host(first), rest
    else:
        host, path = _DOCKER, name
    if host == _DOCKER and "/" not in path:
        path = f"library/{path}"
    return f"{host}/{path}"


def _host(host: str) -> str:
    host = host.lower()
    return _DOCKER if host in _DOCKER_TOO else host
