"""CustomResourceDefinitions generated from models and rules; `python -m hack.crd` writes their files.

The API server requires a structural schema: no references, no unions, a type for every field, and bounds from which
it estimates the cost of the CEL rules. The spec has no defaults: the stored object stays as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mptraining_api.model import Model
from mptraining_api.resolve.field_defaults import DEFAULTS
from mptraining_api.rules.check import rules
from mptraining_api.rules.rule import Condition, Rule, at_most_one, matches, ordered, rule, unchanged, within
from mptraining_api.spec import GROUP, KIND, VERSION, JobSpec
from mptraining_api.status import NOT_OBSERVED, JobStatus
from mptraining_api.sweep.defaults import DEFAULT_TEXTS
from mptraining_api.sweep.spec import SWEEP_KIND, SWEEP_NAME, SWEEP_PLURAL, SWEEP_SHORT_NAME, SweepSpec
from mptraining_api.sweep.status import SweepStatus
from mptraining_api.validation.api_versions import SERVED

# The only copy: the chart reads files of its own folder alone.
FOLDER = Path("charts/mptraining/files")
PLURAL = "mptrainingjobs"
SHORT_NAME = "mptj"
# `kubectl apply` without --server-side stores the whole object in an annotation; annotations are limited to 256 KiB.
CLIENT_SIDE_APPLY_BYTES = 262_144

# The JSON schema keywords that a structural schema has with the same meaning.
_SAME_KEYWORDS = (
    *("type", "description", "enum", "pattern", "format", "required"),
    *("minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
)

_PRESERVE = "x-kubernetes-preserve-unknown-fields"

_COLUMNS = (
    ("Phase", "string", ".status.phase", "Summary in one word."),
    ("Accelerator", "string", ".spec.accelerator.type", "Accelerator type in the spec."),
    ("Workers", "integer", ".status.workers", "Number of its pods."),
    ("Strategy", "string", '.status.resolved[?(@.decision=="strategy")].value', "The tf.distribute strategy."),
    ("Precision", "string", '.status.resolved[?(@.decision=="precision")].value', "The precision policy."),
    ("Progress %", "integer", ".status.progress.percentComplete", "Of all steps."),
    ("Attempt", "integer", ".status.currentAttempt", "Number of the attempt, from 1; only with -o wide."),
    (
        "Reason",
        "string",
        '.status.conditions[?(@.type=="Running")].reason',
        "Why the job does not run, or ModelWaits when its model waits to be fetched; only with -o wide.",
    ),
    ("Age", "date", ".metadata.creationTimestamp", ""),
)


_SWEEP_COLUMNS = (
    ("Phase", "string", ".status.phase", "Summary in one word."),
    ("Trials", "string", ".status.completed", "Trials that have ended with a result, of all."),
    ("Running", "integer", ".status.running", "Trials that run."),
    ("Best", "number", ".status.best.objective", "The best objective so far."),
    ("Failed", "integer", ".status.failed", "Trials that failed; only with -o wide."),
    ("Algorithm", "string", ".spec.algorithm.name", "The algorithm that proposes trials; only with -o wide."),
    ("Age", "date", ".metadata.creationTimestamp", ""),
)


# CEL cannot read values of unknown type (`parameters[].values`, `job`): `sweep.check` validates those, and the operator
# starts no more trials while a started sweep's search is another one than it began with (`search_digest`).
SWEEP_RULES: tuple[Rule, ...] = (
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
            unchanged(field, expected="no change of a sweep that exists", fix="Create another sweep.")
            for field in ("objective", "algorithm")
        ),
    ),
)


def custom_resource_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition of jobs (apiextensions.k8s.io/v1) as plain mappings and lists."""
    about = "A Keras training job: a program, TFRecords, an accelerator."
    spec = with_defaults(structural(JobSpec), {field: default.text for field, default in DEFAULTS.items()})
    root = _object(KIND, about, spec, structural(JobStatus))
    return _definition(KIND, PLURAL, SHORT_NAME, root, rules(), _COLUMNS)


def sweep_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition of sweeps, as `custom_resource_definition` does of jobs."""
    about = "A search over the fields of a training job: an objective, parameters, the job of a trial."
    spec = with_defaults(structural(SweepSpec), DEFAULT_TEXTS)
    root = _object(SWEEP_KIND, about, spec, structural(SweepStatus))
    return _definition(SWEEP_KIND, SWEEP_PLURAL, SWEEP_SHORT_NAME, root, SWEEP_RULES, _SWEEP_COLUMNS)


def _object(kind: str, about: str, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 253, "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "maxLength": 63, "description": kind},
            "metadata": {"type": "object"},
            "spec": spec,
            # For kstatus an object without observedGeneration is complete, also before the operator has seen it.
            "status": status | {"default": {"observedGeneration": NOT_OBSERVED}},
        },
        "required": ["spec"],
    }


def _definition(
    kind: str,
    plural: str,
    short_name: str,
    root: dict[str, Any],
    validations: Iterable[Rule],
    columns: Iterable[tuple[str, str, str, str]],
) -> dict[str, Any]:
    for validation in validations:
        _add_validation(root, validation)
    # A version that is older than the stored one is deprecated; without a conversion webhook all have one schema.
    older = SERVED[SERVED.index(VERSION) + 1 :]
    same = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in columns],
        "schema": {"openAPIV3Schema": root},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "plural": plural,
                "singular": kind.lower(),
                "kind": kind,
                "listKind": f"{kind}List",
                "shortNames": [short_name],
            },
            "versions": [
                {"name": name, "served": True, "storage": name == VERSION}
                | ({"deprecated": True} if name in older else {})
                | same
                for name in SERVED
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if description.endswith("only with -o wide."):
        column["priority"] = 1
    return column | {"description": description} if description else column


def structural(model: type[Model]) -> dict[str, Any]:
    """Return the model as a structural schema. Raises ValueError if it has a type that is not structural (a union)."""
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    node = _merged(node, definitions)
    if node.get("x-kubernetes-int-or-string"):
        return {"x-kubernetes-int-or-string": True}
    if "type" not in node and node.get(_PRESERVE):
        # A value of any type, which the API server stores as it is and CEL cannot read.
        return {key: node[key] for key in ("description", _PRESERVE) if key in node}
    if "type" not in node:
        raise ValueError(f"no structural schema for {node}")
    result = {key: node[key] for key in _SAME_KEYWORDS if key in node}
    if "const" in node:
        result["enum"] = [node["const"]]
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            result[limit], result[exclusive] = node[exclusive], True
    if node["type"] == "integer":
        result["format"] = "int64"
    if node["type"] == "string" and "enum" in result:
        result.pop("maxLength", None)
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        result["properties"] = {name: _structural(value, definitions) for name, value in node["properties"].items()}
    elif node["type"] == "object" and isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    if node["type"] == "object" and node.get("additionalProperties") is True:
        result[_PRESERVE] = True
    return result


def _merged(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the node with its reference inlined and without the null type of an optional field."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        node = (
            {key: value for key, value in node.items() if key != "anyOf"}
            | _merged(options[0], definitions)
            | {key: node[key] for key in ("description",) if key in node}
        )
    if "$ref" in node:
        target = _merged(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
        node = target | {key: value for key, value in node.items() if key != "$ref"}
    return node


def with_defaults(schema: dict[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Add each field's default to its description, for `kubectl explain`. Raises ValueError for unknown fields."""
    rest = dict(texts)
    _add_defaults(schema, "", rest)
    if rest:
        raise ValueError(f"defaults of no such fields: {', '.join(rest)}")
    return schema


def _add_defaults(node: dict[str, Any], path: str, rest: dict[str, str]) -> None:
    for name, inner in node.get("properties", {}).items():
        field = f"{path}.{name}".removeprefix(".")
        default = rest.pop(field, None)
        if default is not None:
            inner["description"] = f"{inner['description']} Default: {default}."
        _add_defaults(inner, field, rest)
    if isinstance(node.get("items"), dict):
        _add_defaults(node["items"], f"{path}[]", rest)


def _add_validation(root: dict[str, Any], rule: Rule) -> None:
    """Add the rule to the schema of the value that it validates, unless it has no schema."""
    if rule.cel is None:
        return
    node = root
    for part in rule.at.split(".") if rule.at else []:
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    validation = {"rule": rule.cel, "message": rule.text}
    below = rule.field.removeprefix(rule.at)
    # A fieldPath must name a property of this schema, and metadata has none here, though rules can read its name.
    if rule.at and below.startswith("."):
        validation["fieldPath"] = below
    elif rule.field == "spec":
        validation["fieldPath"] = ".spec"
    node.setdefault("x-kubernetes-validations", []).append(validation)


class _Text(yaml.SafeDumper):
    """YAML dumper that writes equal lists twice instead of using anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def files() -> dict[str, str]:
    """Return the text of each generated file by its name in `FOLDER`."""
    head = "# Generated by `python -m hack.crd`: edit the models and the rules, not this file.\n"
    definitions = {"crd.yaml": custom_resource_definition(), "crd-sweeps.yaml": sweep_definition()}
    return {
        name: head + yaml.dump(definition, Dumper=_Text, sort_keys=False, width=110)
        for name, definition in definitions.items()
    }


if __name__ == "__main__":
    for name, text in files().items():
        Path(FOLDER, name).write_text(text, encoding="utf-8")
