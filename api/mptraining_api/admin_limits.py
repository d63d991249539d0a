"""What an administrator allows jobs: accelerators, images, registries, nodes. Empty and absent limits allow everything.

They bind whoever may make MPTrainingJobs. Whoever may make pods has other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from mptraining_api.accelerators import canonical, catalogue
from mptraining_api.image_reference import lies_in, matches, parse_image, parse_location
from mptraining_api.model import Count, Model
from mptraining_api.problems import InvalidSpec, OutsideLimits
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob

_ASK = "Ask whoever runs the operator."


def _known(name: str) -> str:
    try:
        return canonical(name)
    except InvalidSpec as problem:
        raise ValueError(str(problem)) from None


def _names(schema: dict[str, Any]) -> None:
    """For `helm install`, which reads the schema: what `canonical` takes."""
    schema["enum"] = [word for each in catalogue().values() for word in (each.name, *each.aliases)]


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        parse(text)
        return text

    return check


Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Image = Annotated[Text, AfterValidator(_checked(parse_image))]


class JobLimits(Model):
    """What jobs may use. Empty and absent limits allow everything."""

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


def refuse(
    job: MPTrainingJob,
    resolved: ResolvedJob,
    limits: JobLimits,
    *,
    operator_namespace: str = "",
    operator_account: str = "",
) -> None:
    """Raises OutsideLimits, with the limit's name, for a job that may not be here, however long it waits.

    Nodes are counted as the resolved job has them. The operator's own default images are always allowed.
    """
    spec = job.spec
    if operator_namespace and job.metadata.namespace == operator_namespace:
        raise OutsideLimits(
            "metadata.namespace",
            f"{operator_namespace!r} is the operator's own, with its account and its certificate",
            next_step="Make the job in another namespace.",
        )
    account = spec.pod_template.service_account_name if spec.pod_template else None
    # Accounts belong to namespaces, but what has the operator's name elsewhere mostly is another operator's.
    if operator_account and account == operator_account:
        raise OutsideLimits(
            "spec.podTemplate.serviceAccountName",
            f"{account!r} is the operator's own name",
            next_step="Name an account made for this job's data.",
        )
    if limits.accelerators and spec.accelerator.type not in limits.accelerators:
        raise OutsideLimits(
            "spec.accelerator.type",
            f"{spec.accelerator.type!r} is outside limits.accelerators",
            expected=f"one of {', '.join(limits.accelerators)}",
            next_step=_ASK,
        )
    for where, image in _images(job):
        _refuse_image(where, image, limits)
    for name, most in (("nodesPerJob", limits.nodes_per_job), ("nodesPerNamespace", limits.nodes_per_namespace)):
        if most is not None and resolved.processes > most:
            raise OutsideLimits(
                "spec.accelerator.topology" if resolved.accelerator.topology else "spec.nodes",
                f"{resolved.processes} nodes are more than limits.{name} allows",
                expected=f"at most {most}",
                next_step=_ASK,
            )


def _images(job: MPTrainingJob) -> Iterator[tuple[str, str]]:
    """The images that the job itself names: of its containers, and of volumes whose content is an image."""
    asked = job.spec.pod_template
    if asked is None:
        return
    if asked.image is not None:
        yield "spec.podTemplate.image", asked.image
    for index, volume in enumerate(asked.volumes or ()):
        source = volume.get("image")
        if isinstance(source, dict):
            yield f"spec.podTemplate.volumes[{index}].image.reference", str(source.get("reference") or "")


def _refuse_image(where: str, text: str, limits: JobLimits) -> None:
    if not limits.images and not limits.registries:
        return
    try:
        image = parse_image(text)
    except ValueError as error:
        raise OutsideLimits(where, str(error), next_step="Mend the name.") from None
    if any(matches(image, parse_image(allowed)) for allowed in limits.images):
        return
    if any(lies_in(image, parse_location(allowed)) for allowed in limits.registries):
        return
    lists = (("images", limits.images), ("registries", limits.registries))
    named = [f"limits.{name} ({', '.join(allowed)})" for name, allowed in lists if allowed]
    raise OutsideLimits(where, f"{text!r} is outside {' and '.join(named)}", next_step=_ASK)
