"""Objects of the API server as the operator decodes and parses them."""

from __future__ import annotations

import json
from typing import Any

from mptraining_api.kubernetes_api import BATCH_JOBS, PODS, Resource
from mptraining_operator.plan.snapshot import SeenBatchJob, SeenPod
from mptraining_operator.watch import parse
from mptraining_operator.watch.informer import STREAMS


def decoded(resource: Resource, raw: dict[str, Any]) -> Any:
    """Return an object as the operator's stream of the resource decodes it."""
    stream = next(each for each in STREAMS if each.resource == resource)
    return stream.decode(json.dumps(raw).encode())


def seen_pod(raw: dict[str, Any]) -> SeenPod:
    return parse.pod(decoded(PODS, raw))


def seen_batch_job(raw: dict[str, Any]) -> SeenBatchJob:
    return parse.batch_job(decoded(BATCH_JOBS, raw))


def version_of(raw: dict[str, Any]) -> int:
    return parse.version_number(raw["metadata"]["resourceVersion"])
