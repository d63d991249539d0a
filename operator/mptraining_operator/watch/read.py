"""A stored job, parsed leniently: what a newer version wrote must not stop this one from looking after its jobs."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob
from mptraining_api.status import JobStatus
from mptraining_operator.watch.parse import StoredJob


def read_job(stored: StoredJob) -> tuple[MPTrainingJob | None, str]:
    """The job, and what is wrong with it in words.

    With fields that only a newer version knows there are both, without a readable spec there is no job.
    """
    metadata = {"name": stored.key.name, "namespace": stored.key.namespace, "uid": stored.uid}
    head = json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}).encode()
    text = head[:-1] + b',"spec":' + stored.spec + b"}"
    try:
        return MPTrainingJob.model_validate_json(text), ""
    except ValidationError:
        problem = _why(json.loads(stored.spec), metadata)
    try:
        return MPTrainingJob.read(text), problem
    except ValidationError:
        return None, problem


def read_status(stored: StoredJob) -> tuple[JobStatus | None, str]:
    """The status with its progress; None and the reason in words when this version cannot read it."""
    members = [stored.status[1:-1], b'"progress":' + stored.progress if stored.progress else b""]
    text = b"{" + b",".join(member for member in members if member) + b"}"
    try:
        return JobStatus.read(text), ""
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("status", *first["loc"]))
        return None, f"{where}: {first['msg']}; was it written by another version?"


def _why(spec: Any, metadata: dict[str, str]) -> str:
    """In the words that a user gets from `mptj check`."""
    try:
        MPTrainingJob.parse({"metadata": metadata, "spec": spec})
    except InvalidSpec as problem:
        return str(problem)
    return "spec: it cannot be read"
