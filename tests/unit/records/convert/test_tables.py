"""CSV, Parquet and .npz files as sources of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage
from tests.unit.records.convert.pictures import Conversion, conversion, images, picture


def _csv(path: Path, text: str, **options: Any) -> Conversion:
    (path / "rows.csv").write_text(text)
    return conversion(path / "rows.csv", path / "out", **options)


def _parquet(path: Path, columns: dict[str, Any], **options: Any) -> Conversion:
    pq.write_table(pa.table(columns), path / "rows.parquet")
    return conversion(path / "rows.parquet", path / "out", **options)


def _npz(path: Path, **arrays: NDArray[Any]) -> Conversion:
    np.savez(path / "rows.npz", **arrays)
    return conversion(path / "rows.npz", path / "out")


class Test_csv:
    def test_columns_become_features_and_a_text_label_classes(self, tmp_path: Path) -> None:
        text = "length,count,species\n1.5,3,setosa\n2.5,4,iris\n0,5,setosa\n"
        converted = _csv(tmp_path, text, label="species")
        assert converted.made.features == (
            Feature(name="count", dtype="int64"),
            Feature(name="length", dtype="float32"),
            Feature(name="species", dtype="int64"),
        )
        assert converted.made.classes == ("iris", "setosa")
        assert converted.rows == [
            {"length": [1.5], "count": [3], "species": [1]},
            {"length": [2.5], "count": [4], "species": [0]},
            {"length": [0.0], "count": [5], "species": [1]},
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x,label\n1,0.5\n3,NaN\n", "column 'label': 1 row has no label, the first in line 3"),
            ("x,label\n,2\n", "column 'x': 1 row has no value, the first in line 2"),
            ("x,x\n1,2\n", "unreadable: CSV file contained multiple columns named x"),
            ("x,y\n1,2\n3\n", "unreadable: .*Expected 2 columns"),
            ("x\n2024-01-01\n", "column 'x' has the type date32"),
            ("x,species\n1,a\n", r"no 'specie' in it.*Did you mean 'species'"),
            ("x,label\n", "no row"),
            ("", "unreadable"),
        ],
    )
    def test_gaps_and_damage_are_named(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(InvalidData, match=message) as caught:
            _csv(tmp_path, text, label="specie" if "species" in text else None)
        assert str(caught.value).startswith(str(tmp_path / "rows.csv"))
        assert "\n" not in str(caught.value)


class Test_gaps:
    TEXT = "area,rooms,price\n1.5,2,30\n,3,40\nNaN,4,50\n\n2.5,5,\nNAN,6,70\n"

    def test_every_column_is_named_at_once_with_its_first_line_in_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidData) as caught:
            _csv(tmp_path, self.TEXT)
        assert str(caught.value).removeprefix(str(tmp_path)) == (
            "/rows.csv: column 'area': 3 rows have no value, the first in line 3; column 'price': 1 row has no value, "
            "the first in line 6; expected a value in every row. Fill the gaps; or --missing drop leaves out 4 of 5 "
            "rows, --columns rooms leaves out the columns with gaps"
        )

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            # Columns are no way out for a label; without a row without gaps they are the only one.
            (TEXT, {"label": "price"}, r"Fill the gaps; or --missing drop leaves out 4 of 5 rows$"),
            ("x,z\n,1\n,2\n", {}, r"the gaps; or --columns z leaves out the columns with gaps$"),
            ("x,z\n,1\n,2\n", {"missing": "Drop"}, r"the gaps; or --columns z leaves out the columns with gaps$"),
            ('note,x\n"two\nlines",1\n"two\nlines",\n', {}, "the first in line 4; expected"),
        ],
    )
    def test_the_ways_out_are_named(self, tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidData, match=message):
            _csv(tmp_path, text, **options)

    def test_drop_leaves_the_rows_out_and_reports_them(self, tmp_path: Path) -> None:
        converted = _csv(tmp_path, self.TEXT, missing="Drop")
        assert converted.rows == [{"area": [1.5], "rooms": [2], "price": [30]}]
        assert [notice for notice in converted.notices if "float64" not in notice] == [
            "--missing drop: 4 of 5 rows are left out: column 'area': 3 rows have no value, the first in line 3; "
            "column 'price': 1 row has no value, the first in line 6"
        ]

    def test_classes_groups_and_the_preview_are_those_of_the_rows_that_stay(self, tmp_path: Path) -> None:
        text = "x,who,label\n,1,only\n" + "".join(f"{row},{row % 10},{'ab'[row % 2]}\n" for row in range(40))
        converted = _csv(tmp_path, text, missing="Drop", group="who", validation_fraction=0.5)
        assert [split.records for split in converted.splits] == [20, 20]
        assert converted.made.classes == ("a", "b")
        assert converted.preview[1] == "  row 1: label 0 (a), x 0"

    @pytest.mark.parametrize("blank", ["", None])
    def test_a_row_without_a_group_is_a_gap(self, tmp_path: Path, blank: str | None) -> None:
        columns = {"x": [1, 2, 3, 4, 5], "who": ["a", blank, "b", blank, "b"]}
        options: dict[str, Any] = {"group": "who", "validation_fraction": 0.4}
        message = r"column 'who': 2 rows have no value, the first in row 1; .* --missing drop leaves out 2 of 5 rows$"
        with pytest.raises(InvalidData, match=message):
            _parquet(tmp_path, columns, **options)
        assert len(_parquet(tmp_path, columns, missing="Drop", **options).rows) == 3


class Test_parquet:
    def test_lists_of_one_length_become_vectors(self, tmp_path: Path) -> None:
        converted = _parquet(
            tmp_path,
            {
                "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())),
                "fixed": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int32(), 3)),
                "flag": [True, False],
                "label": pa.array(["b", "a"]).dictionary_encode(),
            },
        )
        assert converted.made.features == (
            Feature(name="fixed", dtype="int32", shape=(3,)),
            Feature(name="flag", dtype="bool"),
            Feature(name="label", dtype="int64"),
            Feature(name="vector", dtype="float32", shape=(2,)),
        )
        assert converted.made.classes == ("a", "b")
        assert converted.rows[1] == {"fixed": [4, 5, 6], "flag": [0], "label": [0], "vector": [3.0, 4.0]}

    def test_lists_of_varying_length_keep_their_values_and_their_kind(self, tmp_path: Path) -> None:
        converted = _parquet(
            tmp_path,
            {
                "tokens": pa.array([[], [1, 2], [3]], pa.list_(pa.uint16())),
                "track": pa.array([[[0.5, 1.0]], [], [[2.0, 3.0], [4.0, 5.0]]], pa.list_(pa.list_(pa.float32()))),
                "words": pa.array([["a"], ["b", "c"], []]),
            },
        )
        assert converted.made.features == (
            Feature(name="tokens", dtype="uint16", shape=(None,)),
            Feature(name="track", dtype="float32", shape=(None, 2)),
            Feature(name="words", dtype="string", shape=(None,)),
        )
        assert converted.rows == [
            {"tokens": [], "track": [0.5, 1.0], "words": [b"a"]},
            {"tokens": [1, 2], "track": [], "words": [b"b", b"c"]},
            {"tokens": [3], "track": [2.0, 3.0, 4.0, 5.0], "words": []},
        ]

    def test_images_and_lists_of_images_are_recognized(self, tmp_path: Path) -> None:
        image = picture("png", (3, 4))
        columns = {"frames": [[image] * 2, [image]], "image": [image] * 2, "name": ["a", "b"]}
        assert _parquet(tmp_path, columns).made.features == (
            images(None, 3, 4, 3, decode="png", name="frames"),
            images(3, 4, 3, decode="png"),
            Feature(name="name", dtype="string"),
        )

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"x": [[[1, 2]], [[3]]]}, "column 'x', row 1: lists in a list of other lengths than before"),
            ({"x": [[[1, 2], [3]]]}, "column 'x', row 0: lists in a list of other lengths than before"),
            ({"x": [["a"], [None]]}, "column 'x': 1 row has no value, the first in row 1"),
            ({"x": [[1, 2], [3, None]]}, "column 'x': 1 row has no value, the first in row 1"),
            ({"x": pa.array([[], []], pa.list_(pa.null()))}, "column 'x': no list has a value"),
            ({"x": [{"a": 1}]}, "column 'x' has the type struct"),
            ({"label": [0.5, float("nan")]}, "column 'label': 1 row has no label, the first in row 1"),
        ],
    )
    def test_what_cannot_be_a_feature_is_named(self, tmp_path: Path, columns: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidData, match=message):
            _parquet(tmp_path, columns)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((3, 8, 8), np.uint8), Feature(name="x", dtype="uint8", shape=(8, 8), decode="raw")),
        (np.zeros(3, np.uint8), Feature(name="x", dtype="int64")),
        (np.zeros((3, 4), np.float32), Feature(name="x", dtype="float32", shape=(4,))),
        (np.zeros((3, 4)), Feature(name="x", dtype="float32", shape=(4,))),
        (np.zeros((3, 4), np.float16), Feature(name="x", dtype="float16", shape=(4,), decode="raw")),
        (np.zeros((3, 2, 2), np.int32), Feature(name="x", dtype="int32", shape=(2, 2))),
        (np.zeros((3, 4), np.int8), Feature(name="x", dtype="int8", shape=(4,), decode="raw")),
        (np.zeros((3, 4), np.uint16), Feature(name="x", dtype="uint16", shape=(4,), decode="raw")),
        (np.zeros((3, 4), np.uint32), Feature(name="x", dtype="uint32", shape=(4,), decode="raw")),
        (np.zeros((3, 4), "V2"), Feature(name="x", dtype="bfloat16", shape=(4,), decode="raw")),
        (np.zeros(3, np.int64), Feature(name="x", dtype="int64")),
        (np.zeros(3, bool), Feature(name="x", dtype="bool")),
        (np.array(["a", "bc", ""]), Feature(name="x", dtype="string")),
        # Bytes in an array are text, also if they are images.
        (np.array([picture("png")]), Feature(name="x", dtype="string")),
        (np.array([[["a", "é"]], [["", "c"]]]), Feature(name="x", dtype="string", shape=(1, 2))),
    ],
)
def test_arrays_become_features(tmp_path: Path, array: NDArray[Any], expected: Feature) -> None:
    converted = _npz(tmp_path, x=array)
    assert converted.made.features == (expected,)
    assert converted.notices == (["x: float64 is stored as float32"] if array.dtype == np.float64 else []) + (
        ["x: two bytes without a type are bfloat16"] if array.dtype == "V2" else []
    )


def test_a_group_of_an_array_may_be_an_empty_text_or_the_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", who=np.array(["", "a"]), label=np.arange(2))
    for group in ("who", "label"):
        options: dict[str, Any] = {"validation_fraction": 0.5, "group": group, "overwrite": True}
        converted = conversion(tmp_path / "rows.npz", tmp_path / "out", **options)
        assert [(split.records, split.features[0].name) for split in converted.splits] == [(1, "label")] * 2


def test_raw_tensors_are_little_endian_in_c_order(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    halves = np.asfortranarray(np.arange(12, dtype=">f2").reshape(2, 2, 3))
    first, second = _npz(tmp_path, image=pixels, half=halves).rows
    assert first["image"] == [bytes(range(12))]
    assert second["half"] == [np.arange(6, 12, dtype="<f2").tobytes()]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, "arrays of unequal length: x has 3, y has 4"),
        ({"x": np.float32(1)}, "no row"),
        ({"x": np.zeros((0, 3))}, "no row"),
        ({}, "no array in it"),
        ({"x": np.zeros(2), "y": np.array([1, np.nan])}, "y: the label of row 1 is not a finite number"),
        ({"x": np.array([1j, 2])}, "x: complex128 values"),
        ({"x": np.array([{}], object)}, "not a readable"),
    ],
)
def test_arrays_that_cannot_be_records_are_refused(
    tmp_path: Path, arrays: dict[str, NDArray[Any]], message: str
) -> None:
    with pytest.raises(InvalidData, match=message):
        _npz(tmp_path, **arrays)
    assert not storage.glob_or_empty(f"{tmp_path}/out/*")
