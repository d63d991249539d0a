"""Images in folders, in pairs, and named by a table: train.csv with image,category beside images/; folders of text."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from mptraining.cli.main import app
from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.manifest import Manifest
from mptraining_storage import storage
from tests.unit.records.convert.pictures import picture, records


def _rows(folder: Path) -> list[tuple[bytes, int | None]]:
    """Return the image and the label of every record."""
    return [
        (row["image"][0], int(row["label"][0]) if "label" in row else None) for row in records(f"{folder}/*.tfrecord")
    ]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _put(source: Path, name: str, content: bytes) -> bytes:
    storage.write(str(source / name), content)
    return content


def test_sub_folders_are_the_classes_and_the_bytes_are_kept(source: Path, out: Path) -> None:
    pictures = {}
    for number, name in enumerate(["tulips/2.JPG", "daisies/1.jpeg", "tulips/deep/3.jpg", "daisies/4.jpg"]):
        pictures[name] = _put(source, name, picture("jpeg", seed=number))
    (made,) = convert(str(source), str(out), keep_order=True)
    assert made.classes == ("daisies", "tulips")
    assert made.features == (
        Feature(name="image", dtype="uint8", shape=(40, 50, 3), decode="jpeg"),
        Feature(name="label", dtype="int64"),
    )
    assert _rows(out) == [
        (pictures[name], label)
        for name, label in [("daisies/1.jpeg", 0), ("daisies/4.jpg", 0), ("tulips/2.JPG", 1), ("tulips/deep/3.jpg", 1)]
    ]


def test_many_images_without_sub_folders_have_no_label_and_stay_in_order(source: Path, out: Path) -> None:
    pictures = [_put(source, f"{n:03}.png", picture("png", (3, 3), n)) for n in range(100)]
    (made,) = convert(str(source), str(out), keep_order=True)
    assert (made.label, made.classes) == (None, None)
    assert _rows(out) == [(image, None) for image in pictures]


@pytest.mark.parametrize(("size", "shape"), [(None, (None, 50, 3)), ((20, 30), (20, 30, 3))])
def test_sizes_that_differ_leave_the_shape_open_or_are_resized(source: Path, out: Path, size: Any, shape: Any) -> None:
    _put(source, "a/1.jpg", picture("jpeg", (40, 50)))
    _put(source, "b/2.jpg", picture("jpeg", (41, 50), mode="L"))
    (made,) = convert(str(source), str(out), image_size=size, label="flower")
    image = Feature(name="image", dtype="uint8", shape=shape, decode="jpeg")
    assert made.features == (image, Feature(name="flower", dtype="int64"))


def test_other_files_are_skipped_and_reported(source: Path, out: Path) -> None:
    _put(source, "1.jpg", picture("jpeg"))
    for name in ("LICENSE.txt", "a/.DS_Store", "a/._1.jpg"):
        _put(source, name, b"something else")
    said: list[str] = []
    convert(str(source), str(out), notice=said.append)
    assert said == ["3 files that are not images are skipped"]
    assert len(_rows(out)) == 1


def test_changes_are_counted(source: Path, out: Path) -> None:
    turned, frames, deep = io.BytesIO(), io.BytesIO(), io.BytesIO()
    photo, exif = Image.new("RGB", (8, 6)), Image.Exif()
    exif[0x112] = 6
    photo.save(turned, "JPEG", exif=exif)
    photo.save(frames, "GIF", save_all=True, append_images=[Image.new("RGB", (8, 6), "red")])
    Image.fromarray(np.zeros((6, 8), np.uint16)).save(deep, "TIFF")
    for number in range(4):
        _put(source, f"turned-{number}.jpg", turned.getvalue())
    _put(source, "frames.gif", frames.getvalue())
    _put(source, "deep.tif", deep.getvalue())
    _put(source, "deep.ppm", b"P6 1 1 65535\n" + bytes(6))
    _put(source, "transparent.png", picture("png", mode="RGBA"))
    said: list[str] = []
    (made,) = convert(str(source), str(out), notice=said.append, preview=lambda _: None, keep_order=True)
    assert said == [
        "image: 1 image scaled from 16 bits to 8",
        "image: 1 image kept in 16 bits, of which a job decodes 8 unless data.features has dtype: uint16",
        "image: 1 image with several frames, the first of which is stored",
        "image: 1 image with transparency, which a job drops because other images have none",
        "image: 4 images turned upright by EXIF orientation",
    ]
    assert made.features[0].shape == (None, None, 3)


def test_folders_in_a_bucket(bucket: str, out: Path) -> None:
    for name in ("b/2.png", "a/1.png"):
        storage.write(f"{bucket}/pictures/{name}", picture("png"))
    (made,) = convert(f"{bucket}/pictures/", str(out))
    assert made.classes == ("a", "b")
    assert made.records == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.jpg": picture("jpeg"), "2.jpg": picture("jpeg")[:-300]}, "2.jpg: a damaged image"),
        ({"1.jpg": picture("jpeg"), "2.jpg": picture("png")[:-300]}, "2.jpg: a damaged image"),
        ({"1.jpg": picture("jpeg"), "2.jpg": picture("jpeg")[:20]}, "2.jpg: a damaged image"),
        ({"2.jpg": b""}, "2.jpg: a damaged image"),
        ({"2.jpg": b"no image"}, "2.jpg: a damaged image"),
        ({"README.txt": b"text"}, "no image in this folder"),
        ({"a/1.png": b"", "stray.png": b""}, r"images beside the sub-folders, such as 'stray\.png'"),
        ({"a/1.txt": b"text", "b/1.txt": "schön".encode("latin-1")}, "b/1.txt: not UTF-8"),
    ],
)
def test_what_cannot_be_converted_is_refused(source: Path, out: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        _put(source, name, content)
    with pytest.raises(InvalidData, match=message) as caught:
        convert(str(source), str(out), label="label")
    assert "\n" not in str(caught.value)


class Test_folders_that_are_no_classes:
    """Each was converted to classes without a message; the error names the command for what the folder is."""

    def _command(self, source: Path, out: Path, names: Sequence[str], said: str) -> list[list[str]]:
        """Return the arguments of the commands in the error, after checking that each can be typed as it is."""
        for name in names:
            _put(source, name, picture(name.rpartition(".")[2].replace("jpg", "jpeg")))
        with pytest.raises(InvalidData, match=said) as caught:
            convert(str(source), str(out))
        assert "\n" not in str(caught.value)
        assert not out.exists()
        found = re.findall(r"`mptj (.*?)`", caught.value.next_step)
        for command in found:
            done = CliRunner().invoke(app, [*shlex.split(command), "--dry-run"])
            assert done.exit_code == 0, (command, done.output, done.exception)
        return [shlex.split(command) for command in found]

    def test_one_sub_folder_is_no_class(self, source: Path, out: Path) -> None:
        said = "all images are in one sub-folder, 'images', which would be the only class"
        commands = self._command(source, out, ["images/1.jpg", "images/2.jpg"], said)
        assert commands == [["records", "convert", f"{source}/images", str(out)]]

    def test_one_sub_folder_beside_a_table_has_its_labels_there(self, source: Path, out: Path) -> None:
        _put(source, "train.csv", b"image,category\n" + b"".join(b"%d.jpg,%d\n" % (n, n % 2) for n in range(4)))
        names = [f"images/{number}.jpg" for number in range(4)]
        (command,) = self._command(source, out, names, "all images are in one sub-folder")
        assert command[:4] == ["records", "convert", f"{source}/train.csv", str(out)]
        assert command[4:] == ["--images", f"{source}/images", "--path-column", "image", "--label", "category"]

    def test_sub_folders_called_like_splits_are_splits(self, source: Path, out: Path) -> None:
        names = ("train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/4.png")
        commands = self._command(source, out, names, "the sub-folders 'test', 'train' are called like splits")
        assert [command[-2:] for command in commands] == [["--name", "test"], ["--name", "train"]]

    @pytest.mark.parametrize(
        "names",
        [("blurred/1.jpg", "sharp/1.jpg"), ("sharp/1_S.jpg", "blurred/1_M.png", "sharp/2_S.jpg", "blurred/2_M.png")],
    )
    def test_two_folders_with_the_same_names_may_be_pairs(self, source: Path, out: Path, names: list[str]) -> None:
        pairs, classes = self._command(source, out, names, "'blurred' and 'sharp' have the same names; expected")
        assert pairs == ["records", "convert", str(out), "--pairs", f"input={source}/blurred", f"target={source}/sharp"]
        assert classes[-2:] == ["--label", "label"]
        (made,) = convert(str(source), str(out), label="label")
        assert made.classes == ("blurred", "sharp")


class Test_pairs:
    def test_images_of_the_same_name_are_one_record(self, source: Path, out: Path) -> None:
        names = [f"{number:02}" for number in range(20)]
        blurred = {name: _put(source, f"blurred/{name}.jpg", picture("jpeg", seed=int(name))) for name in names}
        sharp = {name: _put(source, f"sharp/{name}.png", picture("png", seed=int(name))) for name in names}
        (made,) = convert(None, str(out), pairs={"input": f"{source}/blurred", "target": f"{source}/sharp"})
        assert made.label == "target"
        assert made.classes is None
        assert made.features == (
            Feature(name="input", dtype="uint8", shape=(40, 50, 3), decode="jpeg"),
            Feature(name="target", dtype="uint8", shape=(40, 50, 3), decode="png"),
        )
        found = {(row["input"][0], row["target"][0]) for row in records(f"{out}/*.tfrecord")}
        assert found == {(blurred[name], sharp[name]) for name in names}

    def test_an_ending_that_all_names_of_a_folder_have_does_not_count(self, source: Path, out: Path) -> None:
        for number in (1, 2, 12):
            _put(source, f"m/{number}_HONOR-7X_M.jpg", picture("jpeg", seed=number))
            _put(source, f"s/{number}_HONOR-7X_S.JPG", picture("jpeg", seed=-number % 100))
        said: list[str] = []
        (made,) = convert(None, str(out), pairs={"x": f"{source}/m", "y": f"{source}/s"}, preview=said.append)
        assert (made.records, made.label) == (3, "y")
        assert all(line.count("/12_") != 1 for line in said)

    def test_an_image_without_a_partner_is_named(self, source: Path, out: Path) -> None:
        for name in ("m/1.jpg", "m/2.jpg", "s/1.jpg"):
            _put(source, name, picture("jpeg"))
        with pytest.raises(InvalidData, match=r"no image for '2\.jpg' of 'input'; 1 of 2 have none"):
            convert(None, str(out), pairs={"input": f"{source}/m", "target": f"{source}/s"})


class Test_bad_images_are_skipped:
    def test_and_named(self, source: Path, out: Path) -> None:
        good = [_put(source, f"{number}.jpg", picture("jpeg", seed=number)) for number in range(40)]
        _put(source, "7.jpg", good[7][:-300])
        _put(source, "9.jpg", b"")
        said: list[str] = []
        _put(source, "0.jpg", b"torn")
        arguments: dict[str, Any] = {"keep_order": True, "preview": lambda _: None, "notice": said.append}
        (made,) = convert(str(source), str(out), bad_images="Skip", **arguments)
        assert made.records == 37
        assert {image for image, _ in _rows(out)} == {*good} - {good[0], good[7], good[9]}
        assert (
            said[0]
            == f"skipped: {source}/0.jpg: a damaged image, or of a format that Pillow does not read, such as HEIC"
        )
        assert sorted(line.split(": a damaged")[0] for line in said) == [
            f"skipped: {source}/0.jpg",
            f"skipped: {source}/7.jpg",
            f"skipped: {source}/9.jpg",
        ]

    def test_in_pairs_with_their_partners_but_one_must_be_left(self, source: Path, out: Path) -> None:
        for number in range(4):
            _put(source, f"a/{number}.jpg", picture("jpeg"))
            _put(source, f"b/{number}.jpg", picture("jpeg") if number else b"torn")
        pairs = {"input": f"{source}/a", "target": f"{source}/b"}
        (made,) = convert(None, str(out), pairs=pairs, bad_images="Skip")
        assert made.records == 3
        _put(source, "torn/1.jpg", b"torn")
        with pytest.raises(InvalidData, match="no row for the split 'train'"):
            convert(f"{source}/torn", f"{out}/torn", bad_images="Skip")


class Test_text_files:
    def test_sub_folders_are_the_classes(self, source: Path, out: Path) -> None:
        for name in ("neg/0_1.txt", "neg/1_3.txt", "pos/2_10.txt"):
            _put(source, name, f"Rezension: schön, {name}\n".encode())
        (made,) = convert(str(source), str(out), keep_order=True)
        assert made.features == (Feature(name="text", dtype="string"), Feature(name="label", dtype="int64"))
        assert made.classes == ("neg", "pos")
        rows = records(f"{out}/*.tfrecord")
        assert [row["text"][0].decode() for row in rows][2] == "Rezension: schön, pos/2_10.txt\n"
        assert [row["label"] for row in rows] == [[0], [0], [1]]

    def test_lines_of_one_file_are_records(self, source: Path, out: Path) -> None:
        _put(source, "lines.txt", b"one\r\n\ntwo\nthree")
        shown: list[str] = []
        (made,) = convert(f"{source}/lines.txt", str(out), keep_order=True, preview=shown.append)
        assert (made.label, made.records) == (None, 3)
        assert shown[1:] == ["  line 1: text 'one'", "  line 3: text 'two'", "  line 4: text 'three'"]
        assert [row["text"] for row in records(f"{out}/*.tfrecord")] == [[b"one"], [b"two"], [b"three"]]


@pytest.fixture
def ships(tmp_path: Path) -> Path:
    """24 images; the categories are 1 to 5, as in the original."""
    folder = tmp_path / "ships"
    for number in range(24):
        storage.write(str(folder / "images" / f"28{number:02}.jpg"), picture("jpeg", (16, 20), number))
    lines = [f"28{number:02}.jpg,{number % 5 + 1}\n" for number in range(24)]
    (folder / "train.csv").write_text("image,category\n" + "".join(lines))
    return folder


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
        ("image,label\n2800.jpg,1\n28001.jpg,2\n", {}, "row 1: no image '28001.jpg' in .*; 1 of 2 are missing.* Skip"),
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
