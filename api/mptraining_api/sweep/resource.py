"""What the CustomResourceDefinition of sweeps adds to the models: columns of `kubectl get`, and rules in CEL.

CEL cannot read values of unknown type (`parameters[].values`, `job`): `check` validates those, and the operator starts
no more trials while a started sweep's search is another one than it began with (`search_digest`).
"""

from __future__ import annotations

import hashlib
import json

from mptraining_api.rules.rule import Rule
from mptraining_api.sweep.spec import SWEEP_NAME, SweepSpec

COLUMNS = (
    ("Phase", "string", ".status.phase", "Summary in one word."),
    ("Trials", "string", ".status.completed", "Trials that have ended with a result, of all."),
    ("Running", "integer", ".status.running", "Trials that run."),
    ("Best", "number", ".status.best.objective", "The best objective so far."),
    ("Failed", "integer", ".status.failed", "Trials that failed; only with -o wide."),
    ("Algorithm", "string", ".spec.algorithm.name", "The algorithm that proposes trials; only with -o wide."),
    ("Age", "date", ".metadata.creationTimestamp", ""),
)


def search_digest(spec: SweepSpec) -> str:
    """Return the SHA-256 of what may not change once a sweep has trials: objective, algorithm, parameters, job."""
    searched = spec.to_document()
    for field in ("trials", "stop", "runPolicy"):
        searched.pop(field, None)
    return hashlib.sha256(json.dumps(searched, sort_keys=True).encode()).hexdigest()


def _range_rule(name: str) -> Rule:
    at, holds = f"spec.parameters[].{name}", lambda bounds: bounds.low <= bounds.high
    return Rule(at, at, "self.low <= self.high", "low not above high", "Exchange low and high.", holds)


def _unchanged(field: str) -> Rule:
    return Rule(
        "spec",
        f"spec.{field}",
        f"self.{field} == oldSelf.{field}",
        "no change of a sweep that exists",
        "Create another sweep.",
        # There is no old object outside the API server.
        lambda _: True,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "",
        "metadata.name",
        f"self.metadata.name.matches('^{SWEEP_NAME.pattern}$')",
        "at most 37 characters of a-z, 0-9 and -, beginning with a letter",
        "Trials add their number to it.",
        lambda sweep: SWEEP_NAME.fullmatch(sweep.metadata.name) is not None,
    ),
    Rule(
        "spec.parameters[]",
        "spec.parameters[]",
        "[has(self.int), has(self.uniform), has(self.logUniform)].filter(given, given).size() <= 1",
        "at most one of int, uniform and logUniform",
        "Write one range.",
        lambda parameter: [parameter.int_, parameter.uniform, parameter.log_uniform].count(None) >= 2,
    ),
    _range_rule("int"),
    _range_rule("uniform"),
    _range_rule("logUniform"),
    Rule(
        "spec.parameters[].logUniform",
        "spec.parameters[].logUniform.low",
        "self.low > 0.0",
        "more than 0",
        "Or use uniform.",
        lambda bounds: bounds.low > 0,
    ),
    _unchanged("objective"),
    _unchanged("algorithm"),
)
