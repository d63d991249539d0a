"""Training data that its manifest describes as sorted by label, and whether the job's shuffling mixes it."""

from __future__ import annotations

from typing import NamedTuple

from mptraining_api.resolved_job import ResolvedData
from mptraining_records.tfrecord.manifest import Manifest


class SortedLabels(NamedTuple):
    """`text` for the user; `is_mixed` is False if the job sets a shuffling that may leave few classes in a batch."""

    text: str
    is_mixed: bool


def report(manifest: Manifest | None, data: ResolvedData) -> SortedLabels | None:
    """Return the report about the training data; None if its manifest does not describe it as sorted."""
    if manifest is None or not manifest.is_sorted_by_label:
        return None
    found = f"the records are sorted by {manifest.label!r}"
    if data.shuffle == "None" or data.shuffle_buffer_size is not None:
        setting = f"bufferSize: {data.shuffle_buffer_size}" if data.shuffle_buffer_size else "mode: None"
        text = f"with data.shuffle {{{setting}}} batches may have few of its classes; leave data.shuffle out"
        return SortedLabels(f"{found}, and {text}", is_mixed=False)
    return SortedLabels(f"{found}; data.shuffle {data.shuffle} mixes them", is_mixed=True)
