"""The rows of a split: a random order of the seed, the validation split, and what a manifest says of the labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mptraining_records.convert.convert import convert
from mptraining_records.convert.permutation import permutation
from mptraining_records.convert.split import choose_validation, summarize, why_not_stratified
from mptraining_records.tfrecord import manifest
from tests.unit.records.convert.pictures import records


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.2, 0.5, 0.9])
def test_each_class_has_its_share(fraction: float) -> None:
    sizes = [1, 2, 7, 50, 400]
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(5), sizes))
    chosen = choose_validation(len(labels), fraction, 3, labels=labels, groups=None)
    for label, size in enumerate(sizes):
        assert abs(int(chosen[labels == label].sum()) - size * fraction) < 1
        assert chosen[labels == label].sum() < size
    assert abs(int(chosen.sum()) - len(labels) * fraction) <= 2


def test_rows_without_classes_are_drawn_evenly() -> None:
    chosen = np.array([choose_validation(10, 0.3, seed, labels=None, groups=None) for seed in range(2000)])
    assert (chosen.sum(axis=1) == 3).all()
    # Each row is chosen 600 times on average, with a standard deviation of 20.
    assert np.abs(chosen.sum(axis=0) - 600).max() < 100


def test_groups_are_never_divided() -> None:
    groups = np.random.default_rng(2).integers(0, 40, 1000)
    chosen = choose_validation(1000, 0.2, 7, labels=None, groups=groups)
    assert not set(groups[chosen]) & set(groups[~chosen])
    assert 150 < chosen.sum() < 250


@pytest.mark.parametrize(
    ("sizes", "classes", "fraction", "why"),
    [
        ([5, 50, 6], None, 0.2, None),
        ([5, 50, 6], None, 0.8, None),
        ([5, 50, 6], None, 0.1, "0 has 5 rows, a share of 0.1 needs 10 of each value"),
        ([5, 50, 6], None, 0.9, "0 has 5 rows, a share of 0.9 needs 10 of each value"),
        ([100, 100, 1], None, 0.2, "2 has 1 row, a share of 0.2 needs 5 of each value"),
        # Named classes: one may be rare, most may not.
        ([1, 9], ("rare", "common"), 0.2, None),
        ([1, 1, 8], ("a", "b", "c"), 0.2, "'a' has 1 row, a share of 0.2 needs 5 of each value"),
    ],
)
def test_a_split_is_stratified_where_every_value_has_enough_rows_for_both(
    sizes: list[int], classes: tuple[str, ...] | None, fraction: float, why: str | None
) -> None:
    assert why_not_stratified(np.repeat(np.arange(len(sizes)), sizes), fraction, classes) == why


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
    assert (made.permutation_seed, made.label_correlation, made.is_sorted_by_label) == (None, 0.99, True)
    assert manifest.find([f"{tmp_path}/a/train-*"]) == made


def test_records_of_a_file_are_whole_after_the_way_through_temporary_files(tmp_path: Path) -> None:
    # More rows than are read at once.
    text = {number: "ä" * (number * 7 % 101) for number in range(9000)}
    (tmp_path / "rows.csv").write_text("x,text\n" + "".join(f"{number},{each}_\n" for number, each in text.items()))
    steps: list[tuple[int, int | None]] = []
    convert(str(tmp_path / "rows.csv"), str(tmp_path / "out"), progress=lambda *step: steps.append(step))
    found = {row["x"][0]: row["text"][0].decode() for row in records(f"{tmp_path}/out/*.tfrecord")}
    assert found == {number: f"{each}_" for number, each in text.items()}
    assert steps == [(number, 18_000) for number in range(1, 18_001)]
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
    assert (found.get("class_counts"), found.get("label_correlation")) == (counts, correlation)


def test_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.repeat([0, 1, 2, 4], [10, 200, 33, 7])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 2, 4]), y=labels)
    found = summarize(labels, 5)
    assert found["class_counts"] == (10, 200, 33, 0, 7)
    assert list(found["class_weight"]) == ["0", "1", "2", "4"]
    assert np.allclose(list(found["class_weight"].values()), expected, atol=1e-4)
