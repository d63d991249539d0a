"""What the CustomResourceDefinition of sweeps adds to the models: columns of `kubectl get`, and rules in CEL.

CEL cannot read values of unknown type (`parameters[].values`, `job`): `check` validates those, and the operator starts
no more trials while a started sweep's search is another one than it began with (`search_digest`).
"""

from __future__ import annotations

import hashlib
import json

from mptraining_api.rules.rule import Condition, Rule, at_most_one, matches, ordered, rule, unchanged, within
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


RULES: tuple[Rule, ...] = (
    *within(
        "",
        matches(
            "metadata.name",
            f"^{SWEEP_NAME.pattern}$",
            "at most 37 characters of a-z, 0-9 and -, beginning with a letter",
            "Trials add their number to it.",
        ),
    ),
    *within("spec.parameters[]", at_most_one("int", "uniform", "logUniform")),
    *(
        range_rule
        for name in ("int", "uniform", "logUniform")
        for range_rule in within(f"spec.parameters[].{name}", ordered("low", "high"))
    ),
    *within(
        "spec.parameters[].logUniform",
        rule("low", Condition("self.low > 0.0", lambda bounds: bounds.low > 0), "more than 0", "Or use uniform."),
    ),
    *within(
        "spec",
        *(
            unchanged(
                field,
                expected="no change of a sweep that exists",
                fix="Create another sweep.",
            )
            for field in ("objective", "algorithm")
        ),
    ),
)
