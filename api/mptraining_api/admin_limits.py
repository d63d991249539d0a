"""Administrator's limits on jobs: accelerators, images, registries, nodes; an empty or absent limit allows everything.

The limits apply to users who can create MPTrainingJobs; users who can create pods can bypass them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from mptraining_api.accelerators import canonical_name, catalogue
from mptraining_api.model import Count, Model
from mptraining_api.problems import InvalidSpec, OutsideLimits
from mptraining_api.resolve.attempt import machines, possible_nodes
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import Accelerator, Machine, MPTrainingJob

_DOCKER = "docker.io"
_DOCKER_ALIASES = ("index.docker.io", "registry-1.docker.io")
# Grammar of distribution/reference, regexp.go: a lower-case path, with single separators between letters and digits.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>[\w+.-]+:[0-9a-f]{{32,}}))?",
    re.ASCII,
)
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
    if rest and ("." in first or ":" in first or first == "localhost"):
        host, path = _host(first), rest
    else:
        host, path = _DOCKER, name
    if host == _DOCKER and "/" not in path:
        path = f"library/{path}"
    return f"{host}/{path}"


def _host(host: str) -> str:
    host = host.lower()
    return _DOCKER if host in _DOCKER_ALIASES else host


_ASK = "Ask the operator's administrator."


def _known(name: str) -> str:
    try:
        return canonical_name(name)
    except InvalidSpec as problem:
        raise ValueError(str(problem)) from None


def _names(schema: dict[str, Any]) -> None:
    """Add the names that `canonical_name` accepts to the schema, which `helm install` validates."""
    schema["enum"] = [word for each in catalogue().values() for word in (each.name, *each.aliases)]


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        parse(text)
        return text

    return check


Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Image = Annotated[Text, AfterValidator(_checked(parse_image))]


class JobLimits(Model):
    """Limits on jobs. Empty and absent limits allow everything."""

    accelerators: tuple[Annotated[Text, AfterValidator(_known), Field(json_schema_extra=_names)], ...] = Field(
        (), description="Accelerators that jobs may ask for, such as nvidia-tesla-t4, or t4 for short. Empty: all."
    )
    images: tuple[Image, ...] = Field(
        (), description="Images that jobs may name, with every tag, or with the one tag or digest that is written."
    )
    registries: tuple[Annotated[Text, AfterValidator(_checked(parse_location))], ...] = Field(
        (), description="Registries, or folders of them, whose images jobs may name. Empty, as images: all."
    )
    nodes_per_job: Count | None = Field(None, description="Most nodes of one job. Absent: any number.")
    nodes_per_namespace: Count | None = Field(
        None, description="Most nodes of all jobs of a namespace together; further ones wait. Absent: any number."
    )


def check_limits(
    job: MPTrainingJob,
    resolved: ResolvedJob,
    limits: JobLimits,
    *,
    operator_namespace: str = "",
    operator_account: str = "",
) -> None:
    """Raise OutsideLimits, naming the limit, if the job can never be admitted, however long it waits.

    The nodes are those of the resolved job. The operator's own default images are always allowed.
    """
    spec = job.spec
    if operator_namespace and job.metadata.namespace == operator_namespace:
        raise OutsideLimits(
            "metadata.namespace",
            f"{operator_namespace!r} is the operator's own, with its account and its certificate",
            next_step="Make the job in another namespace.",
        )
    account = spec.pod_template.service_account_name if spec.pod_template else None
    # An account of that name in another namespace is not this operator's, but most likely that of another operator.
    if operator_account and account == operator_account:
        raise OutsideLimits(
            "spec.podTemplate.serviceAccountName",
            f"{account!r} is the operator's own name",
            next_step="Name an account made for this job's data.",
        )
    for where, machine in _machines(spec.accelerator):
        if limits.accelerators and machine.type not in limits.accelerators:
            raise OutsideLimits(
                f"{where}.type",
                f"{machine.type!r} is outside limits.accelerators",
                expected=f"one of {', '.join(limits.accelerators)}",
                next_step=_ASK,
            )
    for where, image in _images(job):
        _refuse_image(where, image, limits)
    # An elastic job takes what the limits leave.
    least = possible_nodes(resolved)[0]
    field = "spec.elastic.min" if resolved.nodes_range is not None else "spec.nodes"
    for name, most in (("nodesPerJob", limits.nodes_per_job), ("nodesPerNamespace", limits.nodes_per_namespace)):
        if most is None:
            continue
        for (where, _), attempt in zip(_machines(spec.accelerator), machines(resolved), strict=False):
            nodes = least if resolved.nodes_range is not None else attempt.processes
            if nodes > most:
                raise OutsideLimits(
                    f"{where}.topology" if attempt.accelerator.topology else field,
                    f"{nodes} nodes are more than limits.{name} allows",
                    expected=f"at most {most}",
                    next_step=_ASK,
                )


def _machines(accelerator: Accelerator) -> Iterator[tuple[str, Machine]]:
    """Yield the field and each machine of the job: the first choice and its alternatives."""
    yield "spec.accelerator", accelerator
    for index, machine in enumerate(accelerator.alternatives or ()):
        yield f"spec.accelerator.alternatives[{index}]", machine


def _images(job: MPTrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the field and name of each image in the job: that of its containers and those of image volumes."""
    template = job.spec.pod_template
    if template is None:
        return
    if template.image is not None:
        yield "spec.podTemplate.image", template.image
    for index, volume in enumerate(template.volumes or ()):
        source = volume.get("image")
        if isinstance(source, dict):
            yield f"spec.podTemplate.volumes[{index}].image.reference", str(source.get("reference") or "")


def _refuse_image(where: str, text: str, limits: JobLimits) -> None:
    if not limits.images and not limits.registries:
        return
    try:
        image = parse_image(text)
    except ValueError as error:
        raise OutsideLimits(where, str(error), next_step="Fix the name.") from None
    if any(matches(image, parse_image(allowed)) for allowed in limits.images):
        return
    if any(is_in_registry(image, parse_location(allowed)) for allowed in limits.registries):
        return
    lists = (("images", limits.images), ("registries", limits.registries))
    named = [f"limits.{name} ({', '.join(allowed)})" for name, allowed in lists if allowed]
    raise OutsideLimits(where, f"{text!r} is outside {' and '.join(named)}", next_step=_ASK)
