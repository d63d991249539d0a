"""Merge of two pod templates: that of a runtime, and that of a job, which has precedence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mptraining_api.pods.fields import PodTemplate, Resources


def merge(base: PodTemplate, over: PodTemplate) -> PodTemplate:
    """Return `base` with the fields of `over`.

    Maps are merged key by key, lists by the name of their items; of two items with one name that of `over` is used.
    Items without a name are kept from both, those of `base` first: of envFrom, Kubernetes uses the last value.
    """
    values = {name: getattr(base, name) for name in type(base).model_fields}
    for name in type(over).model_fields:
        mine, theirs = values[name], getattr(over, name)
        if theirs is None or mine is None:
            values[name] = mine if theirs is None else theirs
        elif name in _KEYS:
            values[name] = _merge_lists(mine, theirs, _KEYS[name])
        elif name == "resources":
            values[name] = _merge_resources(mine, theirs)
        elif isinstance(mine, dict):
            values[name] = {**mine, **theirs}
        else:
            values[name] = theirs
    return base.model_copy(update=values)


def _field(*names: str) -> Callable[[Any], Any]:
    def key(item: Any) -> Any:
        found = [item.get(name) if isinstance(item, dict) else getattr(item, name) for name in names]
        return tuple(found) if all(each is not None for each in found) else None

    return key


# The key of an item by field; without one, every item is kept once.
_KEYS: dict[str, Callable[[Any], Any]] = {
    "image_pull_secrets": _field("name"),
    "env": _field("name"),
    "env_from": lambda _: None,
    "volumes": _field("name"),
    "volume_mounts": _field("mountPath"),
    "tolerations": lambda _: None,
    "init_containers": _field("name"),
    "topology_spread_constraints": _field("topologyKey", "whenUnsatisfiable"),
}


def _merge_lists(mine: Sequence[Any], theirs: Sequence[Any], key: Callable[[Any], Any]) -> list[Any]:
    names = [key(each) for each in theirs]
    kept = [each for each in mine if each not in theirs and (key(each) is None or key(each) not in names)]
    return [*kept, *theirs]


def _merge_resources(mine: Resources, theirs: Resources) -> Resources:
    parts = {part: (getattr(mine, part), getattr(theirs, part)) for part in ("requests", "limits")}
    return mine.model_copy(update={part: {**(old or {}), **(new or {})} or None for part, (old, new) in parts.items()})
