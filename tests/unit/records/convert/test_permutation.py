"""Rows are written in a random order of the seed, and a manifest says when the records look sorted by label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mptraining_records.convert.convert import convert
from mptraining_records.convert.permutation import permutation
from mptraining_records.convert.split import summarize
from mptraining_records.tfrecord import manifest
from tests.unit.records.convert.pictures import records


@pytest.fixture(params=["npz", "csv"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """1,000 rows in the order of 10 classes: with random access, and without."""
    x, label = np.arange(1000), np.arange(1000) // 100
    if request.param == "npz":
        np.savez(tmp_path / "rows.npz", x=x, label=label)
    else:
        (tmp_path / "rows.csv").write_text("x,label\n" + "".join(f"{a},{b}\n" for a, b in zip(x, label, strict=True)))
    return str(tmp_path / f"rows.{request.param}")


def _order(folder: Path) -> list[int]:
    return [row["x"][0] for row in records(f"{folder}/train-*")]


def test_the_seed_alone_decides_the_order(rows: str, tmp_path: Path) -> None:
    (made,) = convert(rows, str(tmp_path / "a"))
    convert(rows, str(tmp_path / "again"))
    convert(rows, str(tmp_path / "other"), seed=1)
    order = _order(tmp_path / "a")
    assert order == permutation(1000, 0).tolist() == _order(tmp_path / "again") != _order(tmp_path / "other")
    assert sorted(order) == list(range(1000))
    assert made.permutation_seed == 0
    assert abs(made.label_correlation or 1) < 0.1
    assert not made.is_sorted_by_label


def test_kept_order_is_reported_where_it_is_sorted(rows: str, tmp_path: Path) -> None:
    (made,) = convert(rows, str(tmp_path / "a"), keep_order=True)
    assert _order(tmp_path / "a") == list(range(1000))
    assert made.permutation_seed is None
    assert made.label_correlation == 0.99
    assert made.is_sorted_by_label
    assert manifest.find([f"{tmp_path}/a/train-*"]) == made


def test_records_of_a_file_are_whole_after_the_way_through_temporary_files(tmp_path: Path) -> None:
    text = {number: "ä" * (number * 7 % 501) for number in range(3000)}
    (tmp_path / "rows.csv").write_text("x,text\n" + "".join(f"{number},{each}_\n" for number, each in text.items()))
    steps: list[tuple[int, int | None]] = []
    convert(str(tmp_path / "rows.csv"), str(tmp_path / "out"), progress=lambda *step: steps.append(step))
    found = {row["x"][0]: row["text"][0].decode() for row in records(f"{tmp_path}/out/*.tfrecord")}
    assert found == {number: f"{each}_" for number, each in text.items()}
    assert steps == [(number, 6000) for number in range(1, 6001)]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_a_permutation_has_every_number(count: int) -> None:
    assert sorted(permutation(count, 5).tolist()) == list(range(count))


def test_every_place_is_as_likely() -> None:
    first = np.array([permutation(8, seed) for seed in range(4000)])
    counts = np.array([np.bincount(first[:, place], minlength=8) for place in range(8)])
    # Each count is binomial with mean 500 and standard deviation 21.
    assert np.abs(counts - 500).max() < 5 * 21


@pytest.mark.parametrize(
    ("labels", "counts", "correlation"),
    [([0, 0, 1, 1, 1, 1], (2, 4), 0.55), ([0, 0, 0], (3,), None), ([5, -1], None, None), ([0, 10**6], None, None)],
)
def test_labels_are_summarized(labels: list[int], counts: tuple[int, ...] | None, correlation: float | None) -> None:
    found = summarize(np.array(labels), None)
    assert (found.counts, found.correlation) == (counts, correlation)


def test_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.repeat([0, 1, 2, 4], [10, 200, 33, 7])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 2, 4]), y=labels)
    found = summarize(labels, 5)
    assert found.counts == (10, 200, 33, 0, 7)
    assert found.weights is not None
    assert list(found.weights) == ["0", "1", "2", "4"]
    assert np.allclose(list(found.weights.values()), expected, atol=1e-4)
