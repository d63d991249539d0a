"""Administrator's limits on jobs: accelerators, images, registries, workers; an empty or absent one allows all.

The limits apply to users who can create MPTrainingJobs; users who can create pods can bypass them. The checks are in
`limit_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from mptraining_api.accelerators import canonical_name, catalogue
from mptraining_api.model import Count, Model
from mptraining_api.pods.images import parse_image, parse_location
from mptraining_api.problems import InvalidSpec, InvalidValue


def known_accelerator(name: str) -> str:
    """Return the canonical name for it or for a short name, which must be spelled as in the catalogue."""
    try:
        known = canonical_name(name)
    except InvalidSpec as problem:
        raise InvalidValue(problem.found, expected=problem.expected, next_step=problem.next_step) from None
    if name not in (known, catalogue()[known].gke, *catalogue()[known].aliases):
        raise InvalidValue(
            f"{name!r} is spelled differently in the catalogue", next_step=f"Write {name.strip().lower()!r}."
        )
    return known


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise InvalidValue(str(error)) from None
        return text

    return check


Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Image = Annotated[Text, AfterValidator(_checked(parse_image))]
Location = Annotated[Text, AfterValidator(_checked(parse_location))]
KnownAccelerator = Annotated[Text, AfterValidator(known_accelerator)]


class JobLimits(Model):
    """Limits on each job of a runtime; those of `default` apply to all jobs. Empty: everything is allowed."""

    accelerators: tuple[KnownAccelerator, ...] = Field(
        (), description="Accelerators that jobs may ask for, such as t4. Empty: all."
    )
    images: tuple[Image, ...] = Field(
        (), description="Images that jobs may name, with every tag, or with the one tag or digest that is written."
    )
    registries: tuple[Location, ...] = Field(
        (), description="Registries, or folders of them, whose images jobs may name. Empty, as images: all."
    )
    workers_per_job: Count | None = Field(None, description="Most workers of one job. Absent: any number.")
    workers_per_namespace: Count | None = Field(
        None, description="Only of `default`: most workers of all jobs of a namespace together; further ones wait."
    )
