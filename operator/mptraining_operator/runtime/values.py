"""The key of an object, and the name of the operator in its objects and Events."""

from __future__ import annotations

from dataclasses import dataclass

# The manager of the operator's objects, and the source of its Events.
OPERATOR = "mptraining-operator"


@dataclass(frozen=True, slots=True)
class Key:
    """Namespace and name of an object, its key in queues, caches and logs."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
