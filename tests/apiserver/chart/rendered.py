"""The objects that helm renders from values, each set of values once."""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml

from mptraining_operator.settings import OperatorSettings
from tests.testbed.kubernetes.chart import documents, render


@functools.cache
def rendered(values: str, tests: bool) -> list[dict[str, Any]]:
    return documents(render(json.loads(values), tests=tests))


def objects(values: dict[str, Any] | None = None, *, tests: bool = False) -> dict[tuple[str, str], dict[str, Any]]:
    """Kind and name -> object."""
    found = rendered(json.dumps(values or {}), tests)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    deployment = objects(values)["Deployment", "mptraining-operator"]
    template: dict[str, Any] = deployment["spec"]["template"]
    return template


def settings(values: dict[str, Any]) -> OperatorSettings:
    text = objects(values)["ConfigMap", "mptraining-operator"]["data"]["settings.yaml"]
    return OperatorSettings.parse(yaml.safe_load(text))
