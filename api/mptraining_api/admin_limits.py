"""Administrator's limits on jobs: accelerators, images, registries, nodes; an empty or absent limit allows everything.

The limits apply to users who can create MPTrainingJobs; users who can create pods can bypass them. The checks are in
`limit_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from mptraining_api.accelerators import canonical_name, catalogue
from mptraining_api.model import Count, Model
from mptraining_api.problems import InvalidSpec, InvalidValue

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
_REFERENCE = re.compile(IMAGE_PATTERN, re.ASCII)
_LOCATION = re.compile(rf"{_HOST}(?:/{_PART})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageReference:
    """`repository` begins with the registry's host; `tag` is empty if there is a digest or no tag."""

    repository: str
    tag: str = ""
    digest: str = ""


def parse_image(text: str) -> ImageReference:
    """Parse an image name as a container runtime does. Raises ValueError if it is not an image name."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no image, such as registry.example.com/team/trainer:1")
    digest = found["digest"] or ""
    return ImageReference(_repository(found["name"]), "" if digest else found["tag"] or "", digest)


def parse_location(text: str) -> str:
    """Return the full name of a registry or of a folder in one. Raises ValueError for other text, such as a URL."""
    text = text.rstrip("/")
    if _LOCATION.fullmatch(text) is None:
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
    if rest and _is_host(first):
        host, path = _host(first), rest
    else:
        host, path = DOCKER, name
    if host == DOCKER and "/" not in path:
        path = f"library/{path}"
    return f"{host}/{path}"


def _is_host(part: str) -> bool:
    return "." in part or ":" in part or part == "localhost"


def _host(host: str) -> str:
    host = host.lower()
    return DOCKER if host in DOCKER_ALIASES else host


def known_accelerator(name: str) -> str:
    """Return the canonical name for it or for a short name; of the names in `accelerator_names` only."""
    try:
        known = canonical_name(name)
    except InvalidSpec as problem:
        raise InvalidValue(problem.found, expected=problem.expected, next_step=problem.next_step) from None
    if name not in accelerator_names(known):
        raise InvalidValue(
            f"{name!r} is spelled differently in the catalogue", next_step=f"Write {name.strip().lower()!r}."
        )
    return known


def accelerator_names(*known: str) -> list[str]:
    """Return the names of these accelerators in settings, and the short ones; `helm install` validates by them."""
    return [word for each in known for word in (each, *catalogue()[each].aliases)]


def _names(schema: dict[str, Any]) -> None:
    schema["enum"] = accelerator_names(*catalogue())


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise InvalidValue(str(error)) from None
        return text

    return check


def _schema_pattern(pattern: str) -> str:
    """Return the pattern for a whole text in JSON schema, whose ECMAScript has no groups `(?P<name>`."""
    return f"^{re.sub(r'[(][?]P<[a-z]+>', '(?:', pattern)}$"


Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
# The patterns are for `helm install`, which checks the JSON schema.
Image = Annotated[
    Text, AfterValidator(_checked(parse_image)), Field(json_schema_extra={"pattern": _schema_pattern(IMAGE_PATTERN)})
]
Location = Annotated[
    Text,
    AfterValidator(_checked(parse_location)),
    Field(json_schema_extra={"pattern": _schema_pattern(f"{_LOCATION.pattern}/*")}),
]


KnownAccelerator = Annotated[Text, AfterValidator(known_accelerator), Field(json_schema_extra=_names)]


class RuntimeLimits(Model):
    """Limits on each job of a runtime, in addition to those of the settings; empty and absent ones allow everything."""

    accelerators: tuple[KnownAccelerator, ...] = Field(
        (), description="Accelerators that jobs may ask for, such as nvidia-tesla-t4, or t4 for short. Empty: all."
    )
    images: tuple[Image, ...] = Field(
        (), description="Images that jobs may name, with every tag, or with the one tag or digest that is written."
    )
    registries: tuple[Location, ...] = Field(
        (), description="Registries, or folders of them, whose images jobs may name. Empty, as images: all."
    )
    nodes_per_job: Count | None = Field(None, description="Most nodes of one job. Absent: any number.")


class JobLimits(RuntimeLimits):
    """Limits on jobs. Empty and absent limits allow everything."""

    nodes_per_namespace: Count | None = Field(
        None, description="Most nodes of all jobs of a namespace together; further ones wait. Absent: any number."
    )
