"""Training data that are sorted by label, and whether the job's shuffling mixes them; data that are mixed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedData
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.manifest import Manifest

# Runs of neighbouring records whose labels tell whether records without a manifest are mixed.
RUNS, RUN = 16, 16
# For labels in random order, the correlation of so many neighbours deviates from 0 by 0.07.
_MIXED = 0.2


class SortedLabels(NamedTuple):
    """`text` for the user; `is_mixed` is False if the job sets a shuffling that may leave few classes in a batch."""

    text: str
    is_mixed: bool


def report(manifest: Manifest | None, data: ResolvedData) -> SortedLabels | None:
    """Return the report about the training data; None if its manifest does not describe it as sorted."""
    if manifest is None or not manifest.is_sorted_by_label:
        return None
    fact = f"the records are sorted by {manifest.label!r}"
    if data.shuffle == "None" or data.shuffle_buffer_size is not None:
        setting = f"bufferSize: {data.shuffle_buffer_size}" if data.shuffle_buffer_size else "mode: None"
        text = f"with data.shuffle {{{setting}}} batches may have few of its classes; leave data.shuffle out"
        return SortedLabels(f"{fact}, and {text}", is_mixed=False)
    return SortedLabels(f"{fact}; data.shuffle {data.shuffle} mixes them", is_mixed=True)


def are_mixed(label: str, records: Sequence[bytes | None]) -> bool:
    """Return whether neighbouring records have labels in random order; `records` are `RUNS` runs of `RUN` neighbours.

    False if a record is damaged or no example, or a label is not one integer, or all are equal.
    """
    labels = []
    for record in records:
        try:
            feature = example.parse(record).get(label) if record is not None else None
        except InvalidData:
            feature = None
        if feature is None or feature[0] != "int64" or len(feature[1]) != 1:
            return False
        labels.append(int(feature[1][0]))
    correlation = neighbour_correlation(np.array(labels, np.int64).reshape(RUNS, RUN))
    return correlation is not None and correlation < _MIXED


def neighbour_correlation(runs: NDArray[np.int64]) -> float | None:
    """Return the share of neighbours with equal labels above that of a random order: 0 in random order, 1 if sorted.

    `runs` has shape [runs, labels of neighbouring records]. None for fewer than two different labels.
    """
    counts = np.unique(runs, return_counts=True)[1]
    expected = float(((counts / runs.size) ** 2).sum())
    equal = float((runs[:, 1:] == runs[:, :-1]).mean())
    return (equal - expected) / (1 - expected) if len(counts) > 1 else None
