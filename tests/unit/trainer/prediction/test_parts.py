"""Ranges of records, and the columns of outputs, without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidData, Superseded
from mptraining_storage import storage
from mptraining_trainer.model.output_losses import OutputLoss
from mptraining_trainer.prediction import output_columns, parts
from mptraining_trainer.prediction.parts import PartFiles

CATEGORICAL = OutputLoss("sparse_categorical_crossentropy", from_logits=True)
BINARY = OutputLoss("binary_crossentropy", from_logits=True)


@pytest.mark.parametrize(("count", "batch"), [(1, 8), (8, 8), (44, 8), (100, 1), (5_000_000, 100), (7, 1000)])
def test_every_record_is_in_one_part_of_whole_batches(count: int, batch: int) -> None:
    found = parts.plan(count, batch)
    assert [part.first for part in found] == [0, *(part.end for part in found[:-1])]
    assert found[-1].end == count
    assert all(part.records % batch == 0 for part in found[:-1])
    assert all(0 < part.records <= max(batch, 65536 + batch) for part in found)
    shares = [parts.share(found, worker, 3) for worker in range(3)]
    assert sorted(part.number for each in shares for part in each) == [part.number for part in found]


def test_a_part_of_other_settings_is_not_complete(tmp_path: Path) -> None:
    (part,) = parts.plan(2, 8)
    PartFiles(str(tmp_path), "a").write(part, pa.table({"x": [1, 2]}), {"loss": 1.0})
    assert PartFiles(str(tmp_path), "a").note(part) == {"loss": 1.0}
    PartFiles(str(tmp_path), "a").write(part, pa.table({"x": [1, 2]}), None)
    assert PartFiles(str(tmp_path), "a").is_complete(part), "without a note, too"
    assert not PartFiles(str(tmp_path), "b").is_complete(part)
    (tmp_path / f"{part.name}.json").write_text("{")
    assert not PartFiles(str(tmp_path), "a").is_complete(part)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"x": [1]}, {"y": ["1"]}, r"part-00001-of-00002\.parquet"),
        ({"id": [2**60 + 1]}, {"id": [0.5]}, r"part-00000-of-00002\.parquet.*int64"),
    ],
)
def test_parts_with_other_columns_are_not_joined(
    first: dict[str, list[int]], second: dict[str, list[float]], message: str, tmp_path: Path
) -> None:
    files, both = PartFiles(str(tmp_path / "parts"), "a"), parts.plan(2, 1)
    files.write(both[0], pa.table(first), None)
    files.write(both[1], pa.table(second), None)
    with pytest.raises(InvalidData, match=message):
        files.join(both, str(tmp_path / "p.parquet"), lambda: None)
    assert not (tmp_path / "p.parquet").exists()


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        (pa.nulls(1), pa.array(["a"])),
        (pa.nulls(1), pa.array([7])),
        (pa.array([[]], pa.list_(pa.null())), pa.array([[1, 2]])),
    ],
)
@pytest.mark.parametrize("bad_first", [True, False])
def test_a_part_without_values_takes_the_type_of_the_others(
    bad: pa.Array, good: pa.Array, bad_first: bool, tmp_path: Path
) -> None:
    files, both = PartFiles(str(tmp_path / "parts"), "a"), parts.plan(2, 1)
    columns = [bad, good] if bad_first else [good, bad]
    for part, column in zip(both, columns, strict=True):
        files.write(part, pa.table({"id": column, "output": [1.0]}), None)
    files.join(both, str(tmp_path / "p.parquet"), lambda: None)
    joined = pq.read_table(tmp_path / "p.parquet")
    assert joined.schema.field("id").type == good.type
    assert joined["id"].to_pylist() == [*columns[0].to_pylist(), *columns[1].to_pylist()]


def test_a_kill_in_deletion_leaves_no_part_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, both = PartFiles(str(tmp_path), "a"), parts.plan(2, 1)
    for part in both:
        files.write(part, pa.table({"x": [1.0]}), None)
    seen: list[set[str]] = []
    delete, delete_prefix = storage.delete, storage.delete_prefix

    def look() -> None:
        seen.append({path.name for path in tmp_path.iterdir()})

    def look_and_delete(uri: str) -> None:
        look()
        delete(uri)

    def one_by_one(folder: str) -> None:
        # In any order, such as files before marks.
        for path in sorted(Path(folder).iterdir(), reverse=True):
            storage.delete(str(path))
        delete_prefix(folder)

    def superseded() -> None:
        raise Superseded(str(tmp_path), "attempt 2 has taken over")

    with pytest.raises(Superseded):
        files.delete(superseded)
    assert all(map(files.is_complete, both)), "a superseded attempt deletes nothing"
    monkeypatch.setattr(storage, "delete", look_and_delete)
    monkeypatch.setattr(storage, "delete_prefix", one_by_one)
    files.delete(look)
    assert not tmp_path.exists()
    assert len(seen) == 5
    for names in seen:
        assert {f"{Path(name).stem}.parquet" for name in names if name.endswith(".json")} <= names


def test_outputs_are_numbers_lists_and_lists_of_lists() -> None:
    outputs = {
        "number": tf.constant([[1.0], [2.0]]),
        "vector": tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        "matrix": tf.reshape(tf.range(8.0), [2, 2, 2]),
        "half": tf.constant([1.5, 2.5], tf.bfloat16),
        "ragged": tf.ragged.constant([[1], [2, 3]]),
    }
    found = output_columns.table(outputs, {}, [1, None])
    assert {name: column.to_pylist() for name, column in found.items()} == {
        "number": [2.0, None],
        "vector": [[3.0, 4.0], None],
        "matrix": [[[4.0, 5.0], [6.0, 7.0]], None],
        "half": [2.5, None],
        "ragged": [[2, 3], None],
    }


def test_the_loss_decides_what_an_output_means() -> None:
    shapes: dict[str, tuple[int | None, ...]] = {"topic": (8, 3), "spam": (8, 1), "tags": (8, 4), "length": (8, 1)}
    losses = {"topic": CATEGORICAL, "spam": BINARY, "tags": BINARY, "length": OutputLoss("mean_squared_error", False)}
    found = output_columns.classifiers(shapes, losses, None, None)
    assert {name: (each.kind, each.activation) for name, each in found.items()} == {
        "topic": ("classes", "softmax"),
        "spam": ("binary", "sigmoid"),
    }


def test_a_class_has_its_name_and_the_probability_of_that_class() -> None:
    (classes,) = output_columns.classifiers({"output": (2, 3)}, {"": CATEGORICAL}, None, ("a", "b", "c")).values()
    named, probability = classes.decide(np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])))
    assert named.tolist() == ["b", "a"]
    np.testing.assert_allclose(probability, [0.5, 0.6], rtol=1e-6)

    (binary,) = output_columns.classifiers({"output": (2, 1)}, {}, "sigmoid", None).values()
    named, probability = binary.decide(np.array([[0.2], [0.9]]))
    assert named.tolist() == [0, 1]
    np.testing.assert_allclose(probability, [0.8, 0.9], rtol=1e-6)
