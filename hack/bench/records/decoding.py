"""Batches of images [batch, 224, 224, 3] float32 from JPEG records: this project's pipeline, and tf.data by hand."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from hack.bench.figures import figure, progress, publish
from hack.bench.records.child import OWN, Task, cpu_seconds, memory, reset_peak
from hack.bench.records.measure import Bench

SIZE = (224, 224)
BATCH = 32
# Pipelines by hand, and whether their `resize` has `antialias`, as ours has.
BY_HAND = {"antialias": True, "without-antialias": False}


@dataclass(frozen=True)
class Group:
    """Images of one data set, in local files. `goals`: the least speed of our pipeline over each one by hand."""

    data: str
    goals: dict[str, float]


# Images of 500 x 400 are decoded at their own size, photos of 1000 x 800 at half of it.
GROUPS = {
    "decode-local": Group("images", {"antialias": 1.3, "without-antialias": 1}),
    "decode-reduced-local": Group("photos", {"antialias": 1.3, "without-antialias": 1}),
}


@dataclass(frozen=True)
class Decoded:
    """Speed and processor time are those after the first batch; `peak` is as in `Measured`. `labels` is their sum."""

    images_per_second: float
    cpu_milliseconds: float
    peak: int
    labels: int


def measure(bench: Bench, name: str, rounds: int) -> None:
    group = GROUPS[name]
    data = bench.data[group.data]
    decoded: dict[str, list[Decoded]] = {reader: [] for reader in (OWN, *group.goals)}
    for number in range(rounds):
        for reader, runs in decoded.items():
            task = Task(reader, data.patterns("disk"), BATCH)
            run = bench.run(partial(decode_once, antialias=BY_HAND.get(reader)), task)
            if run.labels != sum(range(data.count)):
                raise RuntimeError(f"{reader} did not decode each of {data.count} images of {data.name} once")
            runs.append(run)
            progress(
                f"  {name}, {reader}, round {number + 1}: {run.images_per_second:.0f} images/s, "
                f"{run.cpu_milliseconds:.2f} ms of CPU an image, {run.peak / 1e6:.0f} MB at most"
            )
    for reader, least in group.goals.items():
        for value, unit, at_least, at_most in (
            ("images_per_second", "images/s", least, None),
            ("cpu_milliseconds", "ms", None, 1.0),
            ("peak", "B", None, 0.7),
        ):
            ours, theirs = ([getattr(run, value) for run in decoded[key]] for key in (OWN, reader))
            name_of = f"records.{name}.{value}"
            publish(figure(name_of, ours, theirs, unit=unit, against=reader, least=at_least, most=at_most))


def decode_once(task: Task, *, antialias: bool | None) -> Decoded:
    """Decode all images once, by our pipeline if `antialias` is None."""
    # The parent's standard output has the figures.
    os.dup2(2, 1)
    import tensorflow as tf  # noqa: F401

    import mptraining_trainer.data.dataset  # noqa: F401

    gc.collect()
    before = memory("VmRSS")
    reset_peak()
    images = labels = 0
    began = cpu = 0.0
    for _, numbers in _own(task) if antialias is None else _by_hand(task, antialias):
        labels += int(numbers.numpy().sum())
        if began:
            images += len(numbers)
        else:
            began, cpu = time.monotonic(), cpu_seconds()
    seconds, cpu = time.monotonic() - began, cpu_seconds() - cpu
    return Decoded(images / seconds, cpu / images * 1000, memory("VmHWM") - before, labels)


def _own(task: Task) -> Iterator[tuple[Any, Any]]:
    from mptraining_api.resolve.defaults import resolve_data
    from mptraining_api.spec import Data, Program
    from mptraining_trainer.data.batching import SINGLE_WORKER
    from mptraining_trainer.data.dataset import open_data
    from mptraining_trainer.data.preprocess import Preprocess

    image = {"name": "image", "dtype": "float32", "shape": [0, 0, 3], "decode": "jpeg", "resize": list(SIZE)}
    features = [image, {"name": "label", "dtype": "int64"}]
    program = Program.parse({"function": {"entryPoint": "model:build"}})
    data = resolve_data(Data.parse({"train": task.patterns, "features": features}), program)[0]
    split = open_data(data.train, data, training_columns=None, notice=lambda *_: None, now=time.monotonic)
    batches = split.validation(
        examples_per_step=task.batch, share=SINGLE_WORKER, batch=task.batch, preprocess=Preprocess()
    )
    for images, labels, _, mask in batches.take(-(-split.count // task.batch)):
        yield images, labels[: int(mask.numpy().sum())]


def _by_hand(task: Task, antialias: bool) -> Iterator[tuple[Any, Any]]:
    import tensorflow as tf

    described = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def decode(record: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_single_example(record, described)
        image = tf.io.decode_jpeg(parsed["image"], channels=3)
        return tf.image.resize(image, SIZE, antialias=antialias), parsed["label"]

    files = sorted(file for pattern in task.patterns for file in tf.io.gfile.glob(pattern))
    records = tf.data.TFRecordDataset(files)
    yield from records.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(task.batch).prefetch(tf.data.AUTOTUNE)
