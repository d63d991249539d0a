"""The job's training and validation data, opened, cached where they fit, and named in what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_api.resolved import ResolvedData
from mptraining_trainer import input
from mptraining_trainer.entry_point import import_entry_point
from mptraining_trainer.input import Split
from mptraining_trainer.preprocess import Preprocess, check


def open_splits(data: ResolvedData, notice: Callable[..., None]) -> tuple[Split, Split | None, str, Preprocess]:
    """Training data, validation data if any, the cache in use, and the job's own preprocessing.

    Raises InvalidSpec, InvalidData, InvalidProgram and StorageUnavailable, naming the field.
    """
    with _in_field("spec.data.train"):
        split = input.open_data(data.train, data, like=None, notice=notice)
    validation = None
    if data.validation:
        with _in_field("spec.data.validation"):
            validation = input.open_data(data.validation, data, like=split.columns, notice=notice)
    if data.cache == "Disk":
        notice(
            "DiskCache",
            "data.cache: Disk is not there yet; examples are read and decoded in every epoch",
            level="Warning",
        )
    split, cache = input.with_cache(split, data.cache)
    if validation is not None:
        validation, _ = input.with_cache(validation, data.cache)
    function = None
    if data.preprocess not in ("auto", "none"):
        function = check(import_entry_point(data.preprocess, "spec.data.preprocess"))
    return split, validation, cache, Preprocess(per_example=function)


@contextmanager
def _in_field(field: str) -> Iterator[None]:
    """A problem with a file also names the field that named the file."""
    try:
        yield
    except (InvalidData, StorageUnavailable) as problem:
        where = f"{field}: {problem.where}"
        raise type(problem)(
            where, problem.found, expected=problem.expected, next_step=problem.next_step
        ) from problem.__cause__
