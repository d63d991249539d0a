"""The stored sweep as models: its spec and its status."""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION
from mptraining_api.status import format_time
from mptraining_api.sweep.spec import SWEEP_KIND, MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus
from mptraining_operator.sweeps.cache import StoredSweep


def parsed_sweep(stored: StoredSweep) -> tuple[MPTrainingSweep | None, str]:
    """Return the sweep, or None and a description of what this version cannot read."""
    metadata = {
        "name": stored.key.name,
        "namespace": stored.key.namespace,
        "uid": stored.uid,
        "generation": stored.generation,
        "creationTimestamp": format_time(stored.created),
    }
    spec = msgspec.json.decode(stored.spec)
    document = {"apiVersion": API_VERSION, "kind": SWEEP_KIND, "metadata": metadata, "spec": spec}
    try:
        return MPTrainingSweep.parse_document(document), ""
    except InvalidSpec as problem:
        return None, str(problem)


def parsed_status(stored: StoredSweep) -> tuple[SweepStatus | None, str]:
    """Return the status, or None and the reason if this version cannot read it."""
    try:
        return SweepStatus.read(stored.status), ""
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("status", *first["loc"]))
        return None, f"{where}: {first['msg']}; was it written by another version?"
