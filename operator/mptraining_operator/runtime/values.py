"""Values that the runtime and the reconcilers share: the key of an object, and an Event about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The manager of the operator's objects, and the source of its Events.
OPERATOR = "mptraining-operator"


@dataclass(frozen=True, slots=True)
class Key:
    """Namespace and name of an object, its key in queues, caches and logs."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A Kubernetes Event about an object, emitted after its status is written."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
