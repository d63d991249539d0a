"""A training split opened as a job opens it, and its batches."""

from __future__ import annotations

from typing import Any

from mptraining_api.resolve.defaults import resolve_data
from mptraining_api.spec import Data, Program
from mptraining_records.reading.order import Order, Position
from mptraining_trainer.data import pipeline
from mptraining_trainer.data.batching import SINGLE_WORKER, Batching, Share
from mptraining_trainer.data.cache import with_cache
from mptraining_trainer.data.dataset import open_data
from mptraining_trainer.data.pipeline import Rows, Split
from mptraining_trainer.data.preprocess import Preprocess

START = Position(seed=5, epoch=0, examples=0, fingerprint="")


def resolved(train: str, **fields: Any) -> Any:
    """Return the job's data; `fields` are of spec.data."""
    program = Program.parse({"function": {"entryPoint": "model:build"}})
    return resolve_data(Data.parse({"train": [train], **fields}), program)[0]


def open_split(train: str, cache: str = "None", **fields: Any) -> tuple[Split, str, int]:
    """Return the split, where its examples are kept, and the bytes of that."""
    data = resolved(train, **fields)
    opened = open_data(data.train, data, training_columns=None, notice=lambda topic, text: None, now=lambda: 0.0)
    with pipeline.raise_reading_problems(opened):
        return with_cache(opened, cache, None)  # type: ignore[arg-type]


def order(count: int) -> Order:
    return Order(count=count, seed=5, buffer_size=16, streams=4)


def dataset(
    split: Split,
    count: int,
    batch: int,
    *,
    remainder: str = "Drop",
    position: Position = START,
    share: Share = SINGLE_WORKER,
    rows: Rows = "Full",
    preprocess: Preprocess = Preprocess(),  # noqa: B008 - frozen
) -> Any:
    """Return the batches of a share of the split, which has `count` records."""
    return split.training(
        order=order(count),
        batching=Batching(count, batch, remainder),  # type: ignore[arg-type]
        position=position,
        share=share,
        batch=batch // share.workers,
        rows=rows,
        preprocess=preprocess,
    )
