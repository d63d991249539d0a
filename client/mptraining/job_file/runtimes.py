"""Runtimes of a cluster as a file: operator settings, chart values, or the output of `mptj runtimes --yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from mptraining_api.admin_limits import JobLimits
from mptraining_api.model import Model, Word
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.runtimes import Runtime, RuntimeName

# The ConfigMap that the chart writes, readable by all users, and its key.
CONFIG_MAP = "mptraining-runtimes"
KEY = "runtimes.yaml"


class KnownRuntimes(Model):
    """The runtimes by name, the names of those that namespaces have by default, and limits on all jobs if known."""

    runtimes: dict[RuntimeName, Runtime] = Field({})
    default_runtimes: dict[Word, RuntimeName] = Field({})
    limits: JobLimits = Field(JobLimits())


def load(path: Path) -> KnownRuntimes:
    """Load the runtimes in the YAML file at `path`; its other settings are ignored. Raises InvalidSpec."""
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "not a text file"
        raise InvalidSpec(str(path), cause, expected="a YAML file with runtimes") from None


def parse(text: str, *, where: str) -> KnownRuntimes:
    """Parse the text of such a file. Raises InvalidSpec."""
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidSpec(where, f"not YAML: {error}") from None
    # The values of the chart have the operator's settings in a section.
    settings: Any = document.get("settings", document) if isinstance(document, Mapping) else None
    if not isinstance(settings, Mapping):
        raise InvalidSpec(where, "no mapping", expected="runtimes: {name: …}")
    names = {field.alias for field in KnownRuntimes.model_fields.values()}
    return KnownRuntimes.parse({name: value for name, value in settings.items() if name in names}, where=where)
