"""Names of Keras' applications, optimizers, losses, metrics and schedules, known without TensorFlow.

A unit test compares `keras_names.toml` with the installed packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.validation.mistakes import value_at

Kind = Literal["applications", "optimizers", "losses", "metrics", "schedules"]
Generation = Literal["Keras3", "Legacy"]
_SINGULAR: dict[Kind, str] = {
    "applications": "application", "optimizers": "optimizer", "losses": "loss", "metrics": "metric",
    "schedules": "schedule",
}  # fmt: skip
_CLASS_KEYS = frozenset({"class_name", "className", "config", "module", "registered_name"})


@dataclass(frozen=True, slots=True)
class KerasNames:
    """The names of one generation, by kind."""

    version: str
    names: Mapping[Kind, tuple[str, ...]]


@cache
def table() -> Mapping[Generation, KerasNames]:
    import tomllib

    document = tomllib.loads(Path(__file__).with_name("keras_names.toml").read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            generation: KerasNames(
                document[generation]["version"],
                MappingProxyType({kind: tuple(document[generation][kind]) for kind in _SINGULAR}),
            )
            for generation in get_args(Generation)
        }
    )


def nearest_name(kind: Kind, word: str, generation: Generation = "Keras3") -> str | None:
    """Return the name that `word` probably means: in another case, as a function's name, or misspelled."""
    known = table()[generation].names[kind]
    plain = {_normalized(name): name for name in known}
    if _normalized(word) in plain:
        return plain[_normalized(word)]
    return nearest(word, known).removeprefix("Did you mean '").removesuffix("'?") or None


def is_known(kind: Kind, word: str, generation: Generation = "Keras3") -> bool:
    """Return whether the trainer finds that name; the name of a function selects its class."""
    known = table()[generation].names[kind]
    if word in known:
        return True
    if kind in ("applications", "schedules") or not word.islower():
        return False
    return _normalized(word) in map(_normalized, known)


def _normalized(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def unknown_names(spec: object, generation: Generation = "Keras3") -> Iterator[InvalidSpec]:
    """Yield a problem for each name in the job's `spec` that neither Keras nor mptraining knows.

    Names of the user's own code are not reported: `package>Class` is registered, `module:Class` is imported.
    """
    name = value_at(spec, ("program", "application", "name"))
    if isinstance(name, str):
        yield from _check("applications", name, "spec.program.application.name", generation)
    for section, kind in (("optimizer", "optimizers"), ("loss", "losses")):
        yield from _check_object(value_at(spec, ("training", section)), kind, f"spec.training.{section}", generation)
    metrics = value_at(spec, ("training", "metrics"))
    for index, metric in enumerate(metrics if isinstance(metrics, list) else ()):
        yield from _check_object(metric, "metrics", f"spec.training.metrics[{index}]", generation)


def _check_object(value: object, kind: Any, field: str, generation: Generation) -> Iterator[InvalidSpec]:
    if isinstance(value, Mapping):
        if isinstance(name := value.get("className"), str):
            yield from _check(kind, name, f"{field}.className", generation)
        yield from _check_nested(value.get("config"), f"{field}.config", generation)


def _check_nested(value: object, field: str, generation: Generation) -> Iterator[InvalidSpec]:
    """Check objects inside a config, such as learning rate schedules."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_nested(item, f"{field}[{index}]", generation)
    if not isinstance(value, Mapping):
        return
    key = "class_name" if "class_name" in value else "className"
    name = value.get(key)
    if not isinstance(name, str) or not set(value) <= _CLASS_KEYS:
        for key, inner in value.items():
            yield from _check_nested(inner, f"{field}.{key}", generation)
        return
    kinds: tuple[Kind, ...] = ("schedules", "losses", "metrics", "optimizers")
    if not _is_own(name) and not any(name in table()[generation].names[kind] for kind in kinds):
        hints = (nearest_name(kind, name, generation) for kind in kinds)
        yield _problem("schedules", name, f"{field}.{key}", generation, next((hint for hint in hints if hint), None))
    yield from _check_nested(value.get("config"), f"{field}.config", generation)


def _check(kind: Kind, name: str, field: str, generation: Generation) -> Iterator[InvalidSpec]:
    if not _is_own(name) and not is_known(kind, name, generation):
        yield _problem(kind, name, field, generation, nearest_name(kind, name, generation))


def _is_own(name: str) -> bool:
    return ">" in name or ":" in name or "." in name


def _problem(kind: Kind, name: str, field: str, generation: Generation, close: str | None) -> InvalidSpec:
    keras = f"{'Keras' if generation == 'Keras3' else 'tf_keras'} {table()[generation].version}"
    if close:
        step = f"Did you mean {close!r}?"
    else:
        known = table()[generation].names[kind]
        step = f"Known: {', '.join(known[:12])}{', …' if len(known) > 12 else ''}."
    return InvalidSpec(field, f"there is no {_SINGULAR[kind]} {name!r} in {keras}", next_step=step)
