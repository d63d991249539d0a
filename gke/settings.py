"""Settings of the command line: project, place, names and images. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mptraining_api.admin_limits import names_registry

# Google's rules for each identifier.
_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*")
# Room for "-records" in a bucket's name and for suffixes of node names.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,18}[a-z0-9]")
_BUCKET_LENGTH = 63


class InvalidSettings(ValueError):
    """All mistakes of the command line, one a line."""


@dataclass(frozen=True)
class Settings:
    """`name` marks everything that is created; `images` is a registry with the operator's and trainers' images."""

    project: str
    zone: str = "us-central1-a"
    name: str = "mptraining-try"
    images: str = ""
    tag: str = ""
    namespace: str = "training"
    account: str = "trainer"

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    @property
    def bucket(self) -> str:
        """Names of buckets are the world's: the project's makes it one's own."""
        return f"{self.project}-{self.name}"

    @property
    def label(self) -> str:
        """Return the label of all that was created; without it nothing is deleted."""
        return f"mptraining-gke={self.name}"


def check(settings: Settings, *, images_needed: bool = False) -> None:
    """Raise InvalidSettings with every mistake."""
    rules = [
        ("--project", settings.project, _PROJECT, "a project ID: 6 to 30 lower-case letters, digits and dashes"),
        ("--zone", settings.zone, _ZONE, "a zone such as us-central1-a, not a region"),
        ("--name", settings.name, _NAME, "at most 20 lower-case letters, digits and dashes"),
    ]
    mistakes = [
        f"{flag}: {value!r} is not {expected}" for flag, value, rule, expected in rules if not rule.fullmatch(value)
    ]
    if len(settings.bucket) > _BUCKET_LENGTH:
        mistakes.append(f"--name: the bucket's name {settings.bucket!r} has more than {_BUCKET_LENGTH} characters")
    if images_needed and not settings.images:
        mistakes.append(
            "--images: is missing: the registry with mptraining/operator and mptraining/trainer, such as "
            f"us-docker.pkg.dev/{settings.project}/images; a chart from oci://… names its own"
        )
    if settings.images and not names_registry(settings.images):
        mistakes.append(
            f"--images: {settings.images!r} is not a registry: expected REGION-docker.pkg.dev/PROJECT/REPOSITORY or "
            "another host with a path, without https://, image and tag; the colon of a project such as "
            "example.com:team is a slash here"
        )
    if mistakes:
        raise InvalidSettings("\n".join(mistakes))
