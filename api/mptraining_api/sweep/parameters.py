"""Mistakes in the parameters of a sweep: their paths, ranges, conditions, and what the algorithm can search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.spec import JobSpec
from mptraining_api.sweep.search_space import choices, is_choice, same_value
from mptraining_api.sweep.spec import Parameter, SweepSpec
from mptraining_api.validation.messages import inlined, quote
from mptraining_api.validation.mistakes import field_path, field_text, value_at

# Fields below `spec`, each with the reason.
NOT_SEARCHED = {
    "output": "every trial has a run folder of its own below it",
    "source": "all trials run the same code",
    "runPolicy": "it does not change the objective",
    "scheduling": "it does not change the objective",
    "tracking": "it does not change the objective",
    "profile": "it does not change the objective",
    "export": "the objective is the last value, whatever is exported",
    "data.validation": "values on other records cannot be compared",
    "training.resume": "a trial that lost its machine continues",
    "training.initialEpoch": "values after other numbers of epochs cannot be compared",
}


def path_problem(path: str, job: Mapping[str, Any], *, where: str) -> InvalidSpec | None:
    """Return what is wrong with a parameter's path, or None. `job` is the spec of the sweep's job."""
    for field, because in NOT_SEARCHED.items():
        if path == field or path.startswith((f"{field}.", f"{field}[")):
            return InvalidSpec(
                where, f"{path!r} cannot be searched: {because}", next_step=f"Set {field} in spec.job, or remove it."
            )
    node, schema = _schema(), _schema()
    parts = field_path(path)
    for index, part in enumerate(parts):
        here = parts[:index]
        if isinstance(part, int):
            inner = value_at(dict(job), here)
            if not isinstance(inner, list) or part >= len(inner):
                count = f"has {len(inner)} items" if isinstance(inner, list) else "is not a list there"
                mistake = f"{path!r}: spec.job.{field_text(here)} {count}"
                return InvalidSpec(where, mistake, expected="the index of an item in spec.job, from 0")
            node = node.get("items", {})
        else:
            fields = node.get("properties")
            if fields is not None and part not in fields:
                return _unknown_field(path, part, field_text(here), fields, where)
            if fields is None and node.get("type") not in ("object", None):
                mistake = f"{path!r}: {field_text(here)} has no fields"
                return InvalidSpec(where, mistake, next_step=f"Search {field_text(here)} itself.")
            extra = node.get("additionalProperties")
            node = fields[part] if fields is not None else extra if isinstance(extra, dict) else {}
        node = inlined(schema, node)
    return None


def _unknown_field(path: str, part: str, section: str, fields: Mapping[str, Any], where: str) -> InvalidSpec:
    step = nearest(part, fields) or f"Known fields there: {', '.join(sorted(fields))}."
    if part == "spec" and not section:
        step = "Paths begin below the job's spec: write training.epochs, not spec.training.epochs."
    mistake = f"{path!r}: {f'{section} has' if section else 'a job has'} no field {part!r}"
    return InvalidSpec(where, mistake, next_step=step)


@cache
def _schema() -> dict[str, Any]:
    return JobSpec.model_json_schema(by_alias=True)


_KINDS = "values, int, uniform or logUniform"


def parameter_problems(spec: SweepSpec) -> Iterator[InvalidSpec]:
    for number, parameter in enumerate(spec.parameters):
        where = f"spec.parameters[{number}]"
        problem = path_problem(parameter.path, spec.job, where=f"{where}.path")
        if problem is not None:
            yield problem
        yield from _path_again(parameter, spec.parameters[:number], where)
        yield from _range_problems(parameter, where)
        yield from _when_problems(parameter, spec.parameters[:number], where)
        if spec.algorithm.name == "Grid" and (parameter.uniform or parameter.log_uniform):
            step = "Write values, or use an algorithm that samples: TPE."
            name = "uniform" if parameter.uniform else "logUniform"
            yield InvalidSpec(f"{where}.{name}", "Grid cannot enumerate real numbers", next_step=step)
    if spec.algorithm.name == "CMA-ES" and all(
        parameter.values is not None or parameter.when is not None for parameter in spec.parameters
    ):
        yield InvalidSpec(
            "spec.algorithm.name",
            "CMA-ES searches ranges of numbers without a condition, and there is none",
            next_step="Use TPE, or write int, uniform or logUniform.",
        )


def _path_again(parameter: Parameter, earlier: Sequence[Parameter], where: str) -> Iterator[InvalidSpec]:
    for number, other in enumerate(earlier):
        longer, shorter = sorted((parameter.path, other.path), key=len, reverse=True)
        if longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}[")):
            mistake = f"{parameter.path!r} sets what spec.parameters[{number}] sets, {other.path!r}"
            yield InvalidSpec(f"{where}.path", mistake, expected="each field in one parameter")
            return


def _range_problems(parameter: Parameter, where: str) -> Iterator[InvalidSpec]:
    kinds = {
        "values": parameter.values,
        "int": parameter.int_,
        "uniform": parameter.uniform,
        "logUniform": parameter.log_uniform,
    }
    given = [name for name, value in kinds.items() if value is not None]
    if len(given) != 1:
        mistake = f"has {' and '.join(given)}" if given else "has no values to search"
        yield InvalidSpec(where, mistake, expected=f"exactly one of {_KINDS}")
    if parameter.values is not None:
        if not parameter.values:
            yield InvalidSpec(f"{where}.values", "empty", expected="at least one value")
        for index, value in enumerate(parameter.values):
            if value is None:
                step = "Leave the field out of spec.job and search it under a condition (when)."
                yield InvalidSpec(f"{where}.values[{index}]", "empty", expected="a value", next_step=step)
            elif any(same_value(value, other) for other in parameter.values[:index]):
                yield InvalidSpec(f"{where}.values[{index}]", f"{quote(value)} twice", expected="each value once")
    for name in ("int", "uniform", "logUniform"):
        bounds = kinds[name]
        if bounds is None or isinstance(bounds, list):
            continue
        if bounds.low > bounds.high:
            mistake = f"the range is empty: low {bounds.low:g} is above high {bounds.high:g}"
            yield InvalidSpec(f"{where}.{name}", mistake, next_step="Exchange low and high.")
        elif name == "logUniform" and bounds.low <= 0:
            mistake = f"{bounds.low:g} has no logarithm"
            yield InvalidSpec(f"{where}.logUniform.low", mistake, expected="more than 0", next_step="Or use uniform.")


def _when_problems(parameter: Parameter, earlier: Sequence[Parameter], where: str) -> Iterator[InvalidSpec]:
    when = parameter.when
    if when is None:
        return
    other = next((parameter for parameter in earlier if parameter.path == when.path), None)
    if other is None:
        step = nearest(when.path, [parameter.path for parameter in earlier]) or "Move that parameter before this one."
        mistake = f"{when.path!r} is no parameter before this one"
        yield InvalidSpec(f"{where}.when.path", mistake, expected="the path of an earlier parameter", next_step=step)
        return
    if not when.values:
        yield InvalidSpec(f"{where}.when.values", "empty", expected="at least one value of the other parameter")
    options = choices(other)
    if options is None:
        mistake = f"{when.path!r} is a range of real numbers"
        yield InvalidSpec(f"{where}.when.path", mistake, expected="a parameter with values or int")
        return
    for index, value in enumerate(when.values):
        if not is_choice(value, options):
            mistake = f"{quote(value)} is no value of {when.path!r}"
            yield InvalidSpec(f"{where}.when.values[{index}]", mistake, expected="one of its values")
