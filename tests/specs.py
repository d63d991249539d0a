"""The table of valid and invalid specs, tests/golden/specs.yaml, as documents of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_TABLE = yaml.load((Path(__file__).parent / "golden" / "specs.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
ROWS: list[dict[str, Any]] = _TABLE["rows"]


def document(base: str = "gpu", patch: dict[str, Any] | None = None, name: str = "flowers") -> dict[str, Any]:
    """Return the document of a job: one of the table's bases with a patch, as a row describes it."""
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": name},
        "spec": _merged(_TABLE["bases"][base], patch or {}),
    }


def document_of(row: dict[str, Any]) -> dict[str, Any]:
    return document(row["base"], row.get("patch"), row.get("job", "flowers"))


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    both = base | {key: _merged(base.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in both.items() if value is not None}
