"""Functions with a parameter `hp`, KerasTuner's HyperParameters: their search space, and their values at training.

KerasTuner is imported only for such a function.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mptraining_api.events import Hyperparameter, HyperparameterCondition
from mptraining_api.problems import InvalidProgram, nearest
from mptraining_api.programs.fields import Function
from mptraining_trainer.job.user_code import import_entry_point
from mptraining_trainer.report.error_text import describe_error

PARAMETER = "hp"
ENTRY_POINT = "spec.program.function.entryPoint"
ARGUMENTS = "spec.program.function.arguments"
# As a path into a sweep's job.
_PATH = ARGUMENTS.removeprefix("spec.")
# Each build activates a conditional scope that no earlier one has activated.
_MOST_BUILDS = 200


def takes_hyperparameters(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether the function has a parameter `hp` that the job's arguments do not set."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # A callable without a signature, such as some of C.
        return False
    return PARAMETER in parameters and PARAMETER not in arguments


def with_hyperparameters(
    function: Callable[..., Any], entry_point: str, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], Callable[[bool], None]]:
    """Return the function's keyword arguments with `hp`, and a check to call after it has ended.

    Arguments that are no parameters of the function are values of hyperparameters; those that are absent have their
    defaults. The check raises InvalidProgram for a value that is not in the range that the function asked for, and
    with True (the function has returned) for a value that it did not ask for.
    """
    _import_keras_tuner(entry_point)
    filled = fill_hyperparameters(function, arguments)
    values = {name: value for name, value in arguments.items() if name not in filled}

    def check(returned: bool) -> None:
        _check_values(filled[PARAMETER], values, entry_point, returned=returned)

    return filled, check


def fill_hyperparameters(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a function: values for which it has no parameter become those of its `hp`.

    `rebuild.py` of an exported model contains this function too.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # A callable without a signature, such as some of C.
        return dict(arguments)
    if "hp" not in parameters or "hp" in arguments:
        return dict(arguments)
    hp = importlib.import_module("keras_tuner").HyperParameters()
    hp.values = {name: value for name, value in arguments.items() if name not in parameters}
    return {name: value for name, value in arguments.items() if name in parameters} | {"hp": hp}


def search_space(function: Function) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that the function asks for, those of all its conditional scopes.

    The function is called with the job's own arguments, once for each combination that activates another scope, as
    KerasTuner's tuners do. Raises InvalidProgram if it takes no `hp`, or raises an error.
    """
    build = import_entry_point(function.entry_point, ENTRY_POINT)
    arguments = function.arguments or {}
    if not takes_hyperparameters(build, arguments):
        raise InvalidProgram(
            ENTRY_POINT,
            f"{function.entry_point} has no parameter {PARAMETER!r}",
            expected=f"a function such as build({PARAMETER})",
            next_step="Name the parameters in the sweep, by their paths.",
        )
    _import_keras_tuner(function.entry_point)
    filled = fill_hyperparameters(build, arguments)
    # The job's own values decide nothing about the space.
    space = filled.pop(PARAMETER)
    space.values = {}
    active: list[Sequence[Any]] = []
    inactive: list[Sequence[Any]] = []
    hp = space.copy()
    for _ in range(_MOST_BUILDS):
        try:
            build(**filled, **{PARAMETER: hp})
        except Exception as error:
            raise InvalidProgram(ENTRY_POINT, describe_error(function.entry_point, error)) from error
        space.merge(hp.space, overwrite=False)
        active += [copy.deepcopy(scope) for scope in hp.active_scopes if scope not in active]
        inactive += [copy.deepcopy(scope) for scope in hp.inactive_scopes if scope not in inactive]
        inactive = [scope for scope in inactive if scope not in active]
        if not inactive:
            return tuple(_describe(parameter) for parameter in space.space)
        hp = space.copy()
        hp.values.update({condition.name: condition.values[0] for condition in inactive[0]})
        hp.ensure_active_values()
    names = sorted({condition.name for scope in inactive for condition in scope})
    raise InvalidProgram(
        ENTRY_POINT,
        f"{function.entry_point} has conditional scopes that no value of {', '.join(names)} activates",
        next_step="Correct the values of hp.conditional_scope, or remove it.",
    )


def _import_keras_tuner(entry_point: str) -> None:
    try:
        importlib.import_module("keras_tuner")
    except ImportError:
        raise InvalidProgram(
            ENTRY_POINT,
            f"{entry_point} takes {PARAMETER!r}, and KerasTuner is not installed",
            next_step="Add keras-tuner to source.requirements or to the image.",
        ) from None


def _check_values(hp: Any, values: Mapping[str, Any], entry_point: str, *, returned: bool) -> None:
    known: dict[str, list[Any]] = {}
    for parameter in hp.space:
        known.setdefault(parameter.name, []).append(parameter)
    for name, value in values.items():
        if name not in known and not returned:
            continue
        if name not in known:
            hint = nearest(name, known) or f"It has {', '.join(known) or 'none'}."
            raise InvalidProgram(
                f"{ARGUMENTS}.{name}", f"{entry_point} asks for no hyperparameter {name!r}", next_step=hint
            )
        # A name may have another range in another conditional scope.
        described = [_describe(parameter) for parameter in known[name]]
        if not any(_accepts(parameter, value) for parameter in described):
            raise InvalidProgram(f"{ARGUMENTS}.{name}", repr(value), expected=" or ".join(map(_range_text, described)))


def _accepts(known: Hyperparameter, value: Any) -> bool:
    """Return whether the value has the type of this hyperparameter and is in its range."""
    if known.low is None or known.high is None:
        # True equals 1 in Python.
        return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in known.values)
    if isinstance(value, bool) or not isinstance(value, int if known.kind == "int" else int | float):
        return False
    if not known.low <= value <= known.high:
        return False
    if known.step is None:
        return True
    if known.sampling == "linear":
        steps = (value - known.low) / known.step
    else:
        # The factors of reverse_log count from the upper end.
        factor = value if known.sampling == "log" else known.high + known.low - value
        steps = math.log(factor / known.low, known.step)
    return math.isclose(steps, round(steps), abs_tol=1e-6)


def _range_text(known: Hyperparameter) -> str:
    """Return the possible values, for a message."""
    if known.low is None:
        return ", ".join(repr(value) for value in known.values)
    step = "" if known.step in (None, 1) else f" in steps of {known.step}"
    factor = f" times {known.step} each" if known.step is not None else ""
    kind = "an integer" if known.kind == "int" else "a number"
    return f"{kind} from {known.low} to {known.high}{step if known.sampling == 'linear' else factor}"


def _describe(parameter: Any) -> Hyperparameter:
    when = tuple(
        HyperparameterCondition(path=f"{_PATH}.{condition.name}", values=tuple(condition.values))
        for condition in parameter.conditions
    )
    kind: Any = type(parameter).__name__.lower()
    of_a_range = kind in ("int", "float")
    return Hyperparameter(
        path=f"{_PATH}.{parameter.name}",
        kind=kind,
        low=parameter.min_value if of_a_range else None,
        high=parameter.max_value if of_a_range else None,
        step=parameter.step if of_a_range else None,
        sampling=parameter.sampling if of_a_range else None,
        ordered=parameter.ordered if kind == "choice" else None,
        values=() if of_a_range else tuple(parameter.values),
        default=parameter.default,
        when=when,
    )
