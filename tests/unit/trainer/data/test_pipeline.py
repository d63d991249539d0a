"""From files to the batches of a replica: the same from memory as from files, and after a resume as without."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from mptraining_api.problems import InvalidData, InvalidProgram
from mptraining_api.resolve.defaults import resolve_data
from mptraining_api.spec import Data, Program
from mptraining_records.reading.order import Order, Position
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.example import encode
from mptraining_trainer.data import pipeline as trainer_input
from mptraining_trainer.data.batching import Batching, Share
from mptraining_trainer.data.cache import with_cache
from mptraining_trainer.data.dataset import open_data
from mptraining_trainer.data.pipeline import Rows, Split
from mptraining_trainer.data.preprocess import Preprocess, check_signature
from mptraining_trainer.data.schema import ExampleSpec, TensorSpec

COUNT, BATCH = 43, 8
# Seconds; reached only if nothing is read ahead.
PATIENCE = 60.0
START = Position(seed=5, epoch=0, examples=0, fingerprint="")
ORDER = Order(count=COUNT, seed=5, buffer_size=16, streams=4)
Batch = tuple[np.ndarray, ...]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two shards; record n holds x = [n, n + 0.5] and the label n."""
    for shard, numbers in enumerate((range(20), range(20, COUNT))):
        records = [encode({"x": [float(number), number + 0.5], "label": number}) for number in numbers]
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(framing.encode, records)))
    return tmp_path


def damage(file: Path, record: int) -> None:
    """Flip a byte in the payload of one record; all records have the same length except for their varints."""
    content = bytearray(file.read_bytes())
    place = 0
    for _ in range(record):
        place += int.from_bytes(content[place : place + 8], "little") + 16
    content[place + 14] ^= 0xFF
    file.write_bytes(bytes(content))


def split(folder: Path, cache: str = "None", **fields: Any) -> Split:
    program = Program.parse({"function": {"entryPoint": "model:build"}})
    data = resolve_data(Data.parse({"train": [f"{folder}/*.tfrecord"], **fields}), program)[0]
    datasets = open_data(data.train, data, training_columns=None, notice=lambda topic, text: None, now=lambda: 0.0)
    return with_cache(datasets, cache, None)[0]  # type: ignore[arg-type]


def iterate(
    data: Split,
    *,
    position: Position = START,
    share: Share = Share(0, 1),  # noqa: B008 - frozen
    remainder: str = "Drop",
    rows: Rows = "Masked",
    preprocess: Preprocess = Preprocess(),  # noqa: B008 - frozen
    steps: int | None = None,
) -> Iterator[Batch]:
    dataset = data.training(
        order=ORDER,
        batching=Batching(COUNT, BATCH, remainder),  # type: ignore[arg-type]
        position=position,
        share=share,
        batch=BATCH // share.workers,
        rows=rows,
        preprocess=preprocess,
        steps=steps,
    )
    batches: Iterator[Batch] = dataset.as_numpy_iterator()
    return batches


def training(data: Split, steps: int, **settings: Any) -> list[Batch]:
    return list(itertools.islice(iterate(data, **settings), steps))


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b)
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first, second, strict=True)
    )


def records_of(batches: list[Batch]) -> list[int]:
    return [int(label) for _, labels, _, mask in batches for label in labels[mask > 0]]


@pytest.fixture
def determinism() -> Iterator[None]:
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@pytest.mark.parametrize("cache", ["Memory", "None"])
@pytest.mark.usefixtures("determinism")
def test_under_op_determinism_examples_are_mapped_in_parallel_and_ahead(
    files: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setattr(trainer_input, "threads", lambda: 2)
    usual = training(split(files, cache), 5)
    pairs = threading.Barrier(2)
    changed, calls = threading.Condition(), 0

    def meet(inputs: np.ndarray) -> np.ndarray:
        nonlocal calls
        # The barrier breaks, and so raises, if one call follows another.
        pairs.wait(PATIENCE)
        with changed:
            calls += 1
            changed.notify_all()
        return inputs

    def augment(inputs: Any, labels: Any) -> tuple[Any, Any]:
        return tf.ensure_shape(tf.numpy_function(meet, [inputs], tf.float32, stateful=False), [2]), labels

    batches = iterate(split(files, cache), preprocess=Preprocess(augment), steps=5)
    first = next(batches)
    # The consumer requests nothing more, as while it trains.
    with changed:
        assert changed.wait_for(lambda: calls >= 3 * BATCH, PATIENCE)
    assert same([first, *batches], usual)


@pytest.mark.parametrize("remainder", ["Drop", "PadAndMask"])
def test_memory_and_files_give_the_same_batches(files: Path, remainder: str) -> None:
    from_memory = training(split(files, "Memory"), 13, remainder=remainder)
    from_files = training(split(files), 13, remainder=remainder)
    assert same(from_memory, from_files)
    inputs, labels, _, mask = from_memory[0]
    assert np.array_equal(inputs, np.stack([labels, labels + 0.5], axis=1))
    assert (inputs.dtype, labels.dtype, mask.dtype) == (np.float32, np.int64, np.float32)
    if remainder == "PadAndMask":
        assert sorted(records_of(from_files[:6])) == list(range(COUNT))
        assert [int(mask.sum()) for *_, mask in from_files[:6]] == [8, 8, 8, 8, 8, 3]
    for cache in ("Memory", "None"):
        assert next(iterate(split(files, cache), rows="Full"))[2:] == ((),), "without a mask"


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_a_skipped_record_is_a_masked_hole_and_nothing_shifts(files: Path, cache: str) -> None:
    whole = training(split(files, cache), 6, remainder="PadAndMask")
    damage(files / "1.tfrecord", 3)  # record 23
    damage(files / "0.tfrecord", 0)
    data = split(files, cache, badRecords={"action": "Skip", "maxSkipped": 2})
    holed = training(data, 6, remainder="PadAndMask")
    for (_, labels, _, mask), (_, found, _, found_mask) in zip(whole, holed, strict=True):
        hole = np.isin(labels, (0, 23))
        assert np.array_equal(found_mask, np.where(hole, 0, mask))
        assert np.array_equal(found[found_mask > 0], labels[found_mask > 0])
    assert sorted(records_of(holed)) == [number for number in range(COUNT) if number not in (0, 23)]
    assert {bad.record for bad in data.reader.skipped} == {0, 3}


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_a_damaged_record_is_named_even_from_inside_tf_data(files: Path, cache: str) -> None:
    damage(files / "1.tfrecord", 3)
    with pytest.raises(InvalidData, match=r"1\.tfrecord: record 3 at byte .*badRecords.action: Skip"):  # noqa: PT012
        data = split(files, cache)
        with trainer_input.raise_reading_problems(data):
            training(data, 6)


def test_an_error_of_another_kind_stays_what_it_is(files: Path) -> None:
    data = split(files)
    with pytest.raises(tf.errors.CancelledError), trainer_input.raise_reading_problems(data, None):
        raise tf.errors.CancelledError(None, None, "stopped")


def test_no_readable_record_at_all(files: Path) -> None:
    for record in range(20):
        damage(files / "0.tfrecord", record)
    (files / "1.tfrecord").unlink()
    with pytest.raises(InvalidData):
        split(files, "Memory", badRecords={"action": "Skip", "maxSkipped": 20}, features=FEATURES)


FEATURES = [{"name": "x", "dtype": "float32", "shape": [2]}, {"name": "label", "dtype": "int64"}]


@pytest.mark.parametrize("cache", ["Memory", "None"])
@pytest.mark.parametrize("workers", [1, 2])
def test_validation_counts_each_record_once(files: Path, cache: str, workers: int) -> None:
    def preprocess_by_mode(inputs: Any, labels: Any, training: bool) -> tuple[Any, Any]:
        return (inputs * 0.0 if training else inputs), labels

    data, seen, preprocess = split(files, cache), [], Preprocess(preprocess_by_mode)
    for worker in range(workers):
        dataset = data.validation(
            examples_per_step=BATCH, share=Share(worker, workers), batch=BATCH // workers, preprocess=preprocess
        )
        seen += list(itertools.islice(dataset.as_numpy_iterator(), 6))
    assert sorted(records_of(seen)) == list(range(COUNT))
    assert seen[0][0].max() > 0, "with training=False"


def noisy(inputs: Any, labels: Any, seed: Any, training: bool) -> tuple[Any, Any]:
    assert training
    return inputs + tf.random.stateless_normal(tf.shape(inputs), seed), labels


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_augmentation_is_the_same_after_a_resume(files: Path, cache: str) -> None:
    data, augment = split(files, cache), Preprocess(noisy)
    undisturbed = training(data, 12, preprocess=augment)
    position = Batching(COUNT, BATCH, "Drop").advance(START, 7)
    assert same(training(data, 5, position=position, preprocess=augment), undisturbed[7:])


def test_augmentation_is_the_same_for_two_workers(files: Path) -> None:
    data, augment = split(files), Preprocess(noisy)
    together = training(data, 6, preprocess=augment)
    apart = [training(data, 6, share=Share(worker, 2), preprocess=augment) for worker in range(2)]
    for step, (inputs, labels, *_) in enumerate(together):
        for worker in range(2):
            assert np.array_equal(apart[worker][step][0], inputs[worker::2])
            assert np.array_equal(apart[worker][step][1], labels[worker::2])


def test_every_pass_and_every_seed_augments_differently(files: Path) -> None:
    data, augment = split(files, "Memory"), Preprocess(noisy)

    def noise(batches: list[Batch]) -> dict[int, tuple[float, ...]]:
        return {
            int(label): tuple(row - [label, label + 0.5])
            for inputs, labels, *_ in batches
            for row, label in zip(inputs, labels, strict=True)
        }

    first = noise(training(data, 5, preprocess=augment))
    second = noise(training(data, 5, position=replace(START, epoch=1), preprocess=augment))
    assert len(set(first.values())) == len(first), "no two examples of a pass share their noise"
    assert all(first[record] != second[record] for record in first.keys() & second.keys())


def test_an_applications_own_is_applied_to_whole_batches(files: Path) -> None:
    shapes = []

    def scale(inputs: Any) -> Any:
        shapes.append(tuple(inputs.shape))
        return inputs / 2.0

    inputs, labels, *_ = training(split(files), 1, preprocess=Preprocess(per_batch=scale))[0]
    assert shapes == [(BATCH, 2)]
    assert np.array_equal(inputs[:, 0] * 2, labels)


def plain(inputs: Any, labels: Any) -> Any:
    return inputs, labels


def test_a_function_that_cannot_be_called_so_is_refused_with_its_signature() -> None:
    for function in (
        plain,
        noisy,
        lambda inputs, labels, seed: (inputs, labels),
        lambda inputs, labels, training: (inputs, labels),
        lambda inputs, labels, *, seed, strength=1.0: (inputs, labels),
    ):
        assert check_signature(function) is function
    for wrong in (lambda inputs: inputs, lambda: None, lambda inputs, labels, more: (inputs, labels)):
        with pytest.raises(InvalidProgram, match=r"<lambda>\(.*expected \(inputs, labels\[, seed\]\[, training\]\)"):
            check_signature(wrong)


EXAMPLE = ExampleSpec((TensorSpec("x", "uint8", (4,)),), (TensorSpec("label", "int64", ()),))


def test_the_model_gets_the_shapes_that_preprocess_returns() -> None:
    after = Preprocess(lambda inputs, labels: (tf.cast(inputs[:2], tf.float32), tf.one_hot(labels, 3)))
    spec = after.example_after(EXAMPLE)
    assert spec.inputs == (TensorSpec("x", "float32", (2,)),)
    assert spec.label == TensorSpec("label", "float32", (3,))
    assert Preprocess().example_after(EXAMPLE) is EXAMPLE


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs, labels: (inputs @ labels, labels), "failed on one example"),
        (lambda inputs, labels: inputs, "returned .*; expected .inputs, labels."),
        (lambda inputs, labels: None, "returned NoneType; expected .inputs, labels."),
    ],
    ids=["raises", "one tensor", "nothing"],
)
def test_a_function_that_fails_on_an_example_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=f"^spec.data.preprocess: .*{message}"):
        Preprocess(function).example_after(EXAMPLE)
