"""Parameters of a sweep: values at paths of the job's spec, conditions, and the size of the search."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mptraining_api.sweep.defaults import TRIALS
from mptraining_api.sweep.spec import MOST_TRIALS, IntegerRange, Parameter, SweepSpec
from mptraining_api.validation.mistakes import FieldPath, field_path


def _set(node: Any, parts: FieldPath, value: object) -> None:
    part, rest = parts[0], parts[1:]
    if isinstance(part, int):
        if not isinstance(node, list) or part >= len(node):
            raise KeyError(f"[{part}]")
    elif not isinstance(node, dict):
        raise KeyError(part)
    if not rest:
        node[part] = copy.deepcopy(value)
        return
    if isinstance(part, str) and node.get(part) is None and isinstance(rest[0], str):
        node[part] = {}
    _set(node.get(part) if isinstance(part, str) else node[part], rest, value)


def trial_spec(spec: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the job's spec with the values of a trial's parameters; mappings on the way are created.

    Raises KeyError, with the part of the path, for an item that a list does not have, or a field below a scalar.
    """
    copied: dict[str, Any] = copy.deepcopy(dict(spec))
    for path, value in parameters.items():
        _set(copied, field_path(path), value)
    return copied


def same_value(value: object, other: object) -> bool:
    """Return whether two JSON values are equal; 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_number(value), sort_keys=True) == json.dumps(_number(other), sort_keys=True)


def _number(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_active(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Return whether the parameter is searched, given the values of the earlier ones."""
    when = parameter.when
    if when is None:
        return True
    return when.path in values and any(same_value(values[when.path], value) for value in when.values)


def choices(parameter: Parameter) -> Sequence[Any] | None:
    """Return the values of a parameter that has finitely many, in order; None for real numbers.

    Integers are a range, which takes no memory for its 2**54 values.
    """
    if parameter.values is not None:
        return parameter.values
    return None if parameter.int_ is None else integers(parameter.int_)


def is_choice(value: object, options: Sequence[Any]) -> bool:
    """Return whether a JSON value is one of the `choices`."""
    if isinstance(options, range):
        number = _number(value)
        # A range searches for other types one by one; true is no 1.
        return type(number) is int and number in options
    return any(same_value(value, option) for option in options)


def integers(bounds: IntegerRange) -> range:
    """Return the integers of a range, from low in steps, up to high."""
    return range(bounds.low, bounds.high + 1, bounds.step or 1)


def grid(parameters: Sequence[Parameter], values: Mapping[str, Any] = MappingProxyType({})) -> Iterator[dict[str, Any]]:
    """Yield every combination of values with the given `values`; the last parameter varies fastest.

    Raises ValueError for real numbers.
    """
    if not parameters:
        yield dict(values)
        return
    first, rest = parameters[0], parameters[1:]
    if not is_active(first, values):
        yield from grid(rest, values)
        return
    options = choices(first)
    if options is None:
        raise ValueError(f"{first.path}: a range of real numbers has no grid")
    for value in options:
        yield from grid(rest, {**values, first.path: value})


def grid_size(parameters: Sequence[Parameter], *, most: int) -> int | None:
    """Return the number of combinations, at most `most`; None if a parameter has infinitely many values."""
    counts = [None if (options := choices(parameter)) is None else len(options) for parameter in parameters]
    if None in counts:
        return None
    size = math.prod(count or 0 for count in counts)
    # A parameter without values is a mistake, which is reported elsewhere: no need to enumerate the others.
    if not size or not any(parameter.when for parameter in parameters):
        return min(size, most)
    return sum(1 for _ in itertools.islice(grid(parameters), most))


def max_trials(spec: SweepSpec) -> int:
    """Return the number of trials of a sweep: `trials.max`, and for Grid at most every combination."""
    written = spec.trials.max if spec.trials else None
    if spec.algorithm.name != "Grid":
        return written or TRIALS
    most = written or MOST_TRIALS
    return grid_size(spec.parameters, most=most) or most


def search_digest(spec: SweepSpec) -> str:
    """Return the SHA-256 of what may not change once a sweep has trials: objective, algorithm, parameters, job."""
    searched = spec.to_document()
    for field in ("trials", "stop", "runPolicy"):
        searched.pop(field, None)
    return hashlib.sha256(json.dumps(searched, sort_keys=True).encode()).hexdigest()
