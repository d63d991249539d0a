"""The validation split, and the labels of a split: counts, class weights, and whether they are sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_records.convert.request import VALIDATION, Request
from mptraining_records.convert.table import Table
from mptraining_records.reading.order import Int64s, key, splitmix64
from mptraining_records.tfrecord.sorted_labels import neighbour_correlation

_SPLIT = 2
# Integer labels above this are no class numbers; a job's classWeight has as many entries at most.
_MAX_CLASSES = 1024
# The share of rows that may belong to named classes with too few rows before all classes are ignored.
_MOST_RARE = 0.1


def choose(source: Table, request: Request) -> NDArray[np.bool_]:
    """Return which rows go to the validation split, and report how they were chosen."""
    fraction = request.validation_fraction
    if not fraction:
        return np.zeros(source.count, bool)
    # The split needs the labels of all rows before the first is written; a manifest does not.
    labels = source.labels()
    groups = source.groups() if request.group is not None else None
    unstratified = None
    if labels is not None:
        why = why_not_stratified(labels, fraction, source.classes)
        unstratified = "it is stored as numbers" if request.label_as == "Numbers" else why
        # A group may be all there is of a named class, which is reported; a number is no class.
        if unstratified and (groups is None or source.classes is None):
            labels = None
    chosen = choose_validation(source.count, fraction, request.seed, labels=labels, groups=groups)
    rows = f"{VALIDATION}: {chosen.sum():,} of {source.count:,} rows"
    if groups is not None:
        request.notice(f"{rows}, whole groups of {request.group!r}")
        alone = [] if labels is None else sorted(set(labels[~chosen].tolist()) ^ set(labels[chosen].tolist()))
        if alone:
            name = source.classes[alone[0]] if source.classes else alone[0]
            request.notice(f"the class {name!r} has rows in one of the splits only; another --seed may help")
    elif labels is not None:
        request.notice(f"{rows}, the same share of each {source.label!r}")
    elif unstratified:
        request.notice(f"{rows}, without regard to {source.label!r}: {unstratified}")
    return chosen


def why_not_stratified(labels: Int64s, fraction: float, classes: Sequence[str] | None) -> str | None:
    """Return why a validation split cannot have its share of each label; None if it can.

    A label needs a row in each split. Every value of an integer label must have enough rows, since the values of a
    regression target are no classes. Of named `classes` a few may be rare.
    """
    # Without the subtraction 1 - 0.8 would need 6 rows, since it is less than 0.2 in floating point.
    needed = math.ceil(1 / min(fraction, 1 - fraction) - 1e-9)
    values, sizes = np.unique(labels, return_counts=True)
    rare = sizes < needed
    if not rare.any() or (classes is not None and sizes[rare].sum() <= _MOST_RARE * len(labels)):
        return None
    first = int(np.argmin(sizes))
    name = repr(classes[values[first]]) if classes is not None else values[first]
    rows = f"{sizes[first]} row{'' if sizes[first] == 1 else 's'}"
    return f"{name} has {rows}, a share of {fraction:g} needs {needed} of each value"


def choose_validation(
    count: int, fraction: float, seed: int, *, labels: Int64s | None, groups: NDArray[Any] | None
) -> NDArray[np.bool_]:
    """Return which rows go to the validation split, about `fraction` of them.

    With `groups`, the values of a column, all rows of a value go to one split. Otherwise each label has its share, to
    the nearest row, and one row at least in the training split.
    """
    chosen = np.zeros(count, bool)
    if groups is not None:
        _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        order = np.argsort(splitmix64(key(seed, _SPLIT), np.arange(len(sizes), dtype=np.uint64)), kind="stable")
        taken = np.cumsum(sizes[order]) - sizes[order] / 2 <= count * fraction
        return np.isin(codes, order[taken])
    keys = splitmix64(key(seed, _SPLIT), np.arange(count, dtype=np.uint64))
    strata = labels if labels is not None else np.zeros(count, np.int64)
    order = np.lexsort((keys, strata))
    _, starts, sizes = np.unique(strata[order], return_index=True, return_counts=True)
    before = np.concatenate([[0], np.cumsum(sizes)])
    # Shares are rounded cumulatively, so that the whole split has the right number of rows too.
    bounds = np.floor(before * fraction + 0.5).astype(np.int64)
    for start, size, share in zip(starts, sizes, np.diff(bounds), strict=True):
        chosen[order[start : start + min(share, size - 1)]] = True
    return chosen


def summarize(labels: Int64s | None, classes: int | None) -> dict[str, Any]:
    """Return the manifest's fields about the labels of a split's records, in their order; none without classes.

    `classes` is None if they have no names. A weight is records / (classes * records of the class).
    """
    if labels is None or len(labels) < 2 or labels.min() < 0 or labels.max() >= _MAX_CLASSES:
        return {}
    counts = np.bincount(labels, minlength=classes or 0)
    present = np.flatnonzero(counts)
    weights = {str(label): round(float(len(labels) / (len(present) * counts[label])), 4) for label in present}
    correlation = neighbour_correlation(labels[None])
    return {
        "class_counts": tuple(counts.tolist()),
        "class_weight": weights,
        "label_correlation": None if correlation is None else round(correlation, 3),
    }
