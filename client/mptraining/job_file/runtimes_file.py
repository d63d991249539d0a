"""Runtimes of a cluster as a file: operator settings, chart values, the output of `mptj runtimes -o yaml`, or the
ConfigMap of the chart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, model_validator

from mptraining_api.model import Model, Word
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.runtime_settings import Runtime, RuntimeName, parse_settings, refusals, refuse
from mptraining_api.validation.yaml_text import read_text

# The ConfigMap that the chart writes, readable by all users, and its key.
CONFIG_MAP = "mptraining-runtimes"
KEY = "runtimes.yaml"
_FORMS = (
    "runtimes: {name: …} in a file of settings, settings: {runtimes: …} in values of the chart, the ConfigMap "
    f"{CONFIG_MAP}, or the output of `mptj runtimes -o yaml`"
)


class KnownRuntimes(Model):
    """The runtimes by name, and the names of those that namespaces have by default."""

    runtimes: dict[RuntimeName, Runtime] = Field({})
    default_runtimes: dict[Word, RuntimeName] = Field({})

    @model_validator(mode="after")
    def _known_runtimes(self) -> Self:
        refuse(refusals(self.default_runtimes, self.runtimes))
        return self


def load(path: Path) -> KnownRuntimes:
    """Load the runtimes in the YAML file at `path`; its other settings are ignored. Raises InvalidSpec.

    A file without runtimes is refused, since it is most likely not the intended one.
    """
    return parse(read_text(path, expected="a YAML file with runtimes"), where=str(path), needed=True)


def parse(text: str, *, where: str, needed: bool = False) -> KnownRuntimes:
    """Parse the text of such a file; `needed` refuses a document without runtimes. Raises InvalidSpec."""
    document = _mapping(text, where)
    if document.get("kind") == "ConfigMap":
        data = document.get("data")
        if not isinstance(data, Mapping) or not isinstance(data.get(KEY), str):
            raise InvalidSpec(where, f"a ConfigMap without data.{KEY}", expected=_FORMS)
        where = f"{where}: data[{KEY!r}]"
        # Its lines are not those of the file.
        document, text = _mapping(data[KEY], where), ""
    names = [str(field.alias) for field in KnownRuntimes.model_fields.values()]
    settings: object = document
    section: tuple[str, ...] = ()
    # The values of the chart have the operator's settings in a section.
    if "settings" in document and not document.keys() & set(names):
        settings, section = document["settings"], ("settings",)
    if not isinstance(settings, Mapping):
        raise InvalidSpec(where, "settings is no mapping", expected=_FORMS)
    known = {name: settings[name] for name in names if name in settings}
    if needed and not known:
        fields = ", ".join(map(str, settings)) or "nothing"
        raise InvalidSpec(where, f"no runtimes, but {fields}", expected=_FORMS)
    return parse_settings(KnownRuntimes, known, file=where, text=text, section=section)


def _mapping(text: str, where: str) -> Mapping[str, object]:
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidSpec(where, f"not YAML: {error}") from None
    if not isinstance(document, Mapping):
        raise InvalidSpec(where, "no mapping", expected=_FORMS)
    return document
