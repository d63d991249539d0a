"""The names of the metrics that a job reports, as far as its spec tells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mptraining_api.resolve.defaults import METRICS
from mptraining_api.validation.mistakes import value_at


def reported_metrics(job: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the names that a job with this spec reports for certain, and whether its program may report others."""
    spec = dict(job)
    written = value_at(spec, ("training", "metrics"))
    application = isinstance(value_at(spec, ("program", "application")), Mapping)
    if isinstance(written, Sequence) and not isinstance(written, str):
        names = [_name(each) for each in written if isinstance(each, Mapping)]
    else:
        names = (
            [_name({"className": each.class_name, "config": each.config}) for each in METRICS] if application else []
        )
    trained = ["loss", *names]
    validated = [f"val_{each}" for each in trained] if has_validation(spec) else []
    return [*trained, *validated], not application


def has_validation(job: Mapping[str, Any]) -> bool:
    """Return whether the job has validation data."""
    return bool(value_at(dict(job), ("data", "validation")))


def _name(metric: Mapping[str, Any]) -> str:
    """Return the name under which Keras reports the metric."""
    config = metric.get("config")
    if isinstance(config, Mapping) and isinstance(config.get("name"), str):
        return str(config["name"])
    name = str(metric.get("className", ""))
    # As keras.src.utils.naming.to_snake_case.
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
