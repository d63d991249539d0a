"""CSV of image names and labels: the layout of the ships (train.csv with image,category beside images/)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from mptraining.cli.main import app
from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.storage import storage
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.manifest import Manifest
from tests.unit.records.convert.pictures import picture, records


@pytest.fixture
def ships(tmp_path: Path) -> Path:
    """24 images; the categories are 1 to 5, as in the original."""
    folder = tmp_path / "ships"
    for number in range(24):
        storage.write(str(folder / "images" / f"28{number:02}.jpg"), picture("jpeg", (16, 20), number))
    lines = [f"28{number:02}.jpg,{number % 5 + 1}\n" for number in range(24)]
    (folder / "train.csv").write_text("image,category\n" + "".join(lines))
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _convert(ships: Path, out: Path, **arguments: Any) -> Manifest:
    made = convert(str(ships / "train.csv"), str(out), images=str(ships / "images"), **arguments)
    return made[0]


def _run_command_of(problem: InvalidData) -> None:
    (command,) = re.findall(r"`mptj (.*?)`", problem.next_step)
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output


def test_each_row_is_its_image_and_its_label(ships: Path, out: Path) -> None:
    said: list[str] = []
    made = _convert(ships, out, label="category", notice=said.append)
    assert made.features == (
        Feature(name="image", dtype="uint8", shape=(16, 20, 3), decode="jpeg"),
        Feature(name="category", dtype="int64"),
    )
    assert (made.label, made.classes) == ("category", ("1", "2", "3", "4", "5"))
    assert made.class_counts == (5, 5, 5, 5, 4)
    assert said == ["category: the values 1 to 5 are stored as classes 0 to 4; --label-as Numbers stores the values"]
    expected = {(ships / "images" / f"28{n:02}.jpg").read_bytes(): [n % 5] for n in range(24)}
    assert {row["image"][0]: row["category"] for row in records(f"{out}/*.tfrecord")} == expected


def test_names_as_text_are_refused_with_the_command_to_type(ships: Path, out: Path) -> None:
    with pytest.raises(InvalidData, match=r"column 'image' holds names of image files, such as '2800\.jpg'") as caught:
        convert(str(ships / "train.csv"), str(out), label="category")
    assert not out.exists()
    _run_command_of(caught.value)
    assert len(records(f"{out}/*.tfrecord")[0]["image"][0]) > 100


def test_names_are_stored_as_text_when_columns_are_named_or_beside_the_images_bytes(ships: Path, out: Path) -> None:
    (made,) = convert(str(ships / "train.csv"), str(out), label="category", columns=["image"])
    assert made.features[1] == Feature(name="image", dtype="string")
    table = pa.table({"name": ["a.png", "b.png"], "image": [picture("png"), picture("png")], "label": [0, 1]})
    pq.write_table(table, ships / "rows.parquet")
    (made,) = convert(str(ships / "rows.parquet"), f"{out}/rows")
    assert {each.name: each.dtype for each in made.features}["name"] == "string"


@pytest.mark.parametrize("form", ["image/{}.jpg", "./images/{}.jpg", "{}"])
def test_names_may_have_folders_or_no_suffix(tmp_path: Path, out: Path, form: str) -> None:
    for name in ("007", "008"):
        storage.write(str(tmp_path / "all" / "image" / f"{name}.jpg"), picture("jpeg", seed=int(name)))
        storage.write(str(tmp_path / "all" / "images" / f"{name}.jpg"), picture("jpeg", seed=int(name)))
    (tmp_path / "rows.csv").write_text(f"id,label\n{form.format('007')},0\n{form.format('008')},1\n")
    images = tmp_path / "all" / "image" if form == "{}" else tmp_path / "all"
    convert(str(tmp_path / "rows.csv"), str(out), images=str(images), keep_order=True)
    assert [row["image"] for row in records(f"{out}/*.tfrecord")] == [
        [picture("jpeg", seed=7)],
        [picture("jpeg", seed=8)],
    ]


def test_the_label_must_be_named_when_it_cannot_be_known(ships: Path, out: Path) -> None:
    with pytest.raises(InvalidData, match="which column is the label") as caught:
        _convert(ships, out)
    _run_command_of(caught.value)


def test_other_columns_are_stored_on_request(ships: Path, out: Path) -> None:
    (ships / "train.csv").write_text("image,label,age,port\n2800.jpg,a,3,x\n2801.jpg,b,5,y\n")
    said: list[str] = []
    made = _convert(ships, out, notice=said.append)
    assert [each.name for each in made.features] == ["image", "label"]
    assert said == ["columns that are not stored: age, port; --columns age,port stores them"]
    made = _convert(ships, out, columns=["age"], overwrite=True, keep_order=True)
    assert [each.name for each in made.features] == ["image", "age", "label"]
    assert [row["age"] for row in records(f"{out}/*.tfrecord")] == [[3], [5]]


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (
            "image,label\n2800.jpg,1\n28001.jpg,2\n",
            {},
            r"column 'image', row 1: no image '28001.jpg' in .*; 1 of 2 are missing. Did .* Skip",
        ),
        ("image,label\n2800.jpg,1\n,2\n", {}, "column 'image': 1 row has no value, the first in line 3; .* Drop leaves "
         "out 1 of 2 rows$"),
        ("image,label\n2800.jpg,1\nzz.jpg,\n", {}, "column 'label': 1 row has no label, .* Drop leaves out 1 of 2"),
        ("image,label\n2800.jpg,1\n2801.jpg,\n", {}, "column 'label': 1 row has no label, the first in line 3"),
        ("image,label\na.jpg,1\nb.jpg,2\n", {}, r"no columns hold names of images in .*images"),
        ("image,copy,label\n2800.jpg,2800.jpg,1\n", {}, "2 columns hold names of images"),
        ("image,label\n2800.jpg,1\n", {"path_column": "imgae"}, "no column 'imgae' for --path-column.*'image'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(ships: Path, out: Path, text: str, arguments: dict[str, str], said: str) -> None:
    (ships / "train.csv").write_text(text)
    with pytest.raises(InvalidData, match=said) as caught:
        _convert(ships, out, label="label", **arguments)
    assert str(caught.value).startswith(str(ships / "train.csv"))
    assert not out.exists()


def test_missing_and_damaged_images_are_skipped_on_request(ships: Path, out: Path) -> None:
    (ships / "images" / "2800.jpg").write_bytes(b"torn")
    (ships / "images" / "2801.jpg").unlink()
    said: list[str] = []
    made = _convert(ships, out, label="category", bad_images="Skip", notice=said.append)
    assert made.records == 22
    assert made.class_counts == (4, 4, 5, 5, 4)
    assert any(line.startswith("skipped: row 1: no image '2801.jpg'") for line in said)
    assert any(line.startswith(f"skipped: {ships}/images/2800.jpg: a damaged image") for line in said)


def test_rows_without_a_name_a_label_or_a_group_are_left_out_on_request(ships: Path, out: Path) -> None:
    text = "image,label,who\n2800.jpg,1,a\n,0,a\nmissing.jpg,,a\n2801.jpg,0,\n2802.jpg,0,b\n2803.jpg,1,b\n"
    (ships / "train.csv").write_text(text)
    said: list[str] = []
    arguments: dict[str, Any] = {"group": "who", "validation_fraction": 0.5, "notice": said.append}
    with pytest.raises(InvalidData, match=r"column 'image': 1 row has no value.* 'who': 1 row has no value, the fi"):
        _convert(ships, out, **arguments)
    train, validation = convert(
        str(ships / "train.csv"), str(out), images=str(ships / "images"), missing="Drop", **arguments
    )
    assert train.records + validation.records == 3
    assert any(line.startswith("--missing Drop: 3 of 6 rows are left out: ") for line in said)


def test_names_alone_are_left_out_where_they_are_empty(ships: Path, out: Path) -> None:
    (ships / "train.csv").write_text("image,port\n2800.jpg,x\n,y\n2801.jpg,x\n")
    made = _convert(ships, out, columns=[], missing="Drop")
    assert (made.records, made.label) == (2, None)
    said: list[str] = []
    assert _convert(ships, out, columns=[], bad_images="Skip", overwrite=True, notice=said.append).records == 2
    assert any(line.startswith("skipped: row 1: no image ''") for line in said)


def test_groups_stay_together(ships: Path, out: Path) -> None:
    rows = [f"28{number:02}.jpg,{number % 2},patient {number // 3}\n" for number in range(24)]
    (ships / "train.csv").write_text("image,label,patient\n" + "".join(rows))
    train, validation = convert(
        str(ships / "train.csv"), str(out), images=str(ships / "images"), validation_fraction=0.25, group="patient"
    )
    assert (train.records, validation.records) == (18, 6)
    patient = {(ships / "images" / f"28{n:02}.jpg").read_bytes(): n // 3 for n in range(24)}
    split = [{patient[row["image"][0]] for row in records(f"{out}/{name}-*")} for name in ("train", "validation")]
    assert not split[0] & split[1]
    assert len(split[1]) == 2
