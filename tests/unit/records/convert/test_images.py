"""Images in folders, in pairs, and named by a table: train.csv with image,category beside images/; folders of text."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

from mptraining.cli.main import app
from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage
from tests.unit.records.convert.pictures import Conversion, conversion, images, picture, records

LABEL = Feature(name="label", dtype="int64")


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
    names = ["daisies/1.jpeg", "daisies/4.jpg", "tulips/2.JPG", "tulips/deep/3.jpg"]
    pictures = [_put(source, name, picture("jpeg", seed=number)) for number, name in enumerate(names)]
    converted = conversion(source, out)
    assert (converted.made.classes, converted.made.features) == (("daisies", "tulips"), (images(40, 50, 3), LABEL))
    assert [row["image"] + row["label"] for row in converted.rows] == [
        [content, number // 2] for number, content in enumerate(pictures)
    ]


def test_many_images_without_sub_folders_have_no_label_and_stay_in_order(source: Path, out: Path) -> None:
    pictures = [_put(source, f"{n:03}.png", picture("png", (3, 3), n)) for n in range(100)]
    converted = conversion(source, out)
    assert (converted.made.label, converted.made.classes) == (None, None)
    assert converted.rows == [{"image": [content]} for content in pictures]


@pytest.mark.parametrize(("size", "shape"), [(None, (None, 50, 3)), ((20, 30), (20, 30, 3))])
def test_sizes_that_differ_leave_the_shape_open_or_are_resized(source: Path, out: Path, size: Any, shape: Any) -> None:
    _put(source, "a/1.jpg", picture("jpeg", (40, 50)))
    _put(source, "b/2.jpg", picture("jpeg", (41, 50), mode="L"))
    converted = conversion(source, out, image_size=size, label="flower")
    assert converted.made.features == (images(*shape), Feature(name="flower", dtype="int64"))


def test_other_files_are_skipped_and_reported(source: Path, out: Path) -> None:
    _put(source, "1.jpg", picture("jpeg"))
    for name in ("LICENSE.txt", "a/.DS_Store", "a/._1.jpg"):
        _put(source, name, b"something else")
    converted = conversion(source, out)
    assert (converted.notices, len(converted.rows)) == (["3 files that are not images are skipped"], 1)


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
    converted = conversion(source, out)
    assert converted.notices == [
        "image: 1 image scaled from 16 bits to 8",
        "image: 1 image kept in 16 bits, of which a job decodes 8 unless data.features has dtype: uint16",
        "image: 1 image with several frames, the first of which is stored",
        "image: 1 image with transparency, which a job drops because other images have none",
        "image: 4 images turned upright by EXIF orientation",
    ]
    assert converted.made.features[0].shape == (None, None, 3)


def test_folders_in_a_bucket(bucket: str, out: Path) -> None:
    for name in ("b/2.png", "a/1.png"):
        storage.write(f"{bucket}/pictures/{name}", picture("png"))
    converted = conversion(f"{bucket}/pictures/", out, keep_order=False)
    assert (converted.made.classes, converted.made.records) == (("a", "b"), 2)


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

    def _commands(self, source: Path, out: Path, names: tuple[str, ...], message: str) -> list[list[str]]:
        """Return the arguments of the commands in the error, after checking that each can be typed as it is."""
        for name in names:
            _put(source, name, picture(name.rpartition(".")[2].replace("jpg", "jpeg")))
        with pytest.raises(InvalidData, match=message) as caught:
            convert(str(source), str(out))
        assert "\n" not in str(caught.value)
        assert not out.exists()
        commands = [shlex.split(command) for command in re.findall(r"`mptj (.*?)`", caught.value.next_step)]
        for command in commands:
            done = CliRunner().invoke(app, [*command, "--dry-run"])
            assert done.exit_code == 0, (command, done.output, done.exception)
        return commands

    def test_one_sub_folder_is_no_class(self, source: Path, out: Path) -> None:
        message = "all images are in one sub-folder, 'images', which would be the only class"
        commands = self._commands(source, out, ("images/1.jpg", "images/2.jpg"), message)
        assert commands == [["records", "convert", f"{source}/images", str(out)]]

    def test_one_sub_folder_beside_a_table_has_its_labels_there(self, source: Path, out: Path) -> None:
        _put(source, "train.csv", b"image,category\n" + b"".join(b"%d.jpg,%d\n" % (n, n % 2) for n in range(4)))
        names = tuple(f"images/{number}.jpg" for number in range(4))
        (command,) = self._commands(source, out, names, "all images are in one sub-folder")
        assert command[:4] == ["records", "convert", f"{source}/train.csv", str(out)]
        assert command[4:] == ["--images", f"{source}/images", "--path-column", "image", "--label", "category"]

    def test_sub_folders_called_like_splits_are_splits(self, source: Path, out: Path) -> None:
        names = ("train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/4.png")
        commands = self._commands(source, out, names, "the sub-folders 'test', 'train' are called like splits")
        assert [command[-2:] for command in commands] == [["--name", "test"], ["--name", "train"]]

    @pytest.mark.parametrize(
        "names",
        [("blurred/1.jpg", "sharp/1.jpg"), ("sharp/1_S.jpg", "blurred/1_M.png", "sharp/2_S.jpg", "blurred/2_M.png")],
    )
    def test_two_folders_with_the_same_names_may_be_pairs(
        self, source: Path, out: Path, names: tuple[str, ...]
    ) -> None:
        pairs, classes = self._commands(source, out, names, "'blurred' and 'sharp' have the same names; expected")
        assert pairs == ["records", "convert", str(out), "--pairs", f"input={source}/blurred", f"target={source}/sharp"]
        assert classes[-2:] == ["--label", "label"]
        assert conversion(source, out, label="label").made.classes == ("blurred", "sharp")


class Test_pairs:
    def _convert(self, source: Path, out: Path, **options: Any) -> Conversion:
        return conversion(None, out, pairs={"input": f"{source}/m", "target": f"{source}/s"}, **options)

    def test_images_of_the_same_name_are_one_record(self, source: Path, out: Path) -> None:
        photos = [_put(source, f"m/{number:02}.jpg", picture("jpeg", seed=number)) for number in range(20)]
        drawings = [_put(source, f"s/{number:02}.png", picture("png", seed=number)) for number in range(20)]
        converted = self._convert(source, out)
        assert (converted.made.label, converted.made.classes) == ("target", None)
        assert converted.made.features == (
            images(40, 50, 3, name="input"),
            images(40, 50, 3, decode="png", name="target"),
        )
        assert [(row["input"][0], row["target"][0]) for row in converted.rows] == list(
            zip(photos, drawings, strict=True)
        )

    def test_an_ending_that_all_names_of_a_folder_have_does_not_count(self, source: Path, out: Path) -> None:
        for number in (1, 2, 12):
            _put(source, f"m/{number}_HONOR-7X_M.jpg", picture("jpeg", seed=number))
            _put(source, f"s/{number}_HONOR-7X_S.JPG", picture("jpeg", seed=-number % 100))
        converted = self._convert(source, out)
        assert (converted.made.records, converted.made.label) == (3, "target")
        assert all(line.count("/12_") != 1 for line in converted.preview)

    def test_an_image_without_a_partner_is_named(self, source: Path, out: Path) -> None:
        for name in ("m/1.jpg", "m/2.jpg", "s/1.jpg"):
            _put(source, name, picture("jpeg"))
        with pytest.raises(InvalidData, match=r"no image for '2\.jpg' of 'input'; 1 of 2 have none"):
            self._convert(source, out)

    def test_a_bad_image_is_skipped_with_its_partner(self, source: Path, out: Path) -> None:
        for number in range(4):
            _put(source, f"m/{number}.jpg", picture("jpeg"))
            _put(source, f"s/{number}.jpg", picture("jpeg") if number else b"torn")
        assert self._convert(source, out, bad_images="Skip").made.records == 3


def test_bad_images_are_skipped_and_named_once_but_one_must_be_left(source: Path, out: Path) -> None:
    good = [_put(source, f"{number:02}.jpg", picture("jpeg", seed=number)) for number in range(40)]
    for name, content in (("00", b"torn"), ("07", good[7][:-300]), ("09", b"")):
        _put(source, f"{name}.jpg", content)
    converted = conversion(source, out, bad_images="Skip")
    assert [row["image"][0] for row in converted.rows] == [*good[1:7], good[8], *good[10:]]
    causes = [line.removeprefix(f"skipped: {source}/") for line in converted.notices]
    assert causes[0] == "00.jpg: a damaged image, or of a format that Pillow does not read, such as HEIC"
    assert [cause.partition(": a damaged")[0] for cause in causes] == ["00.jpg", "07.jpg", "09.jpg"]
    _put(source, "torn/1.jpg", b"torn")
    with pytest.raises(InvalidData, match="no row for the split 'train'"):
        convert(f"{source}/torn", f"{out}/torn", bad_images="Skip")


class Test_text_files:
    def test_sub_folders_are_the_classes(self, source: Path, out: Path) -> None:
        texts = {name: f"Rezension: schön, {name}\n".encode() for name in ("neg/0.txt", "neg/1.txt", "pos/2_10.txt")}
        for name, text in texts.items():
            _put(source, name, text)
        converted = conversion(source, out)
        assert converted.made.features == (Feature(name="text", dtype="string"), LABEL)
        assert converted.made.classes == ("neg", "pos")
        assert [row["text"][0] for row in converted.rows] == list(texts.values())
        assert [row["label"] for row in converted.rows] == [[0], [0], [1]]

    def test_lines_of_one_file_are_records(self, source: Path, out: Path) -> None:
        _put(source, "lines.txt", b"one\r\n\ntwo\nthree")
        converted = conversion(source / "lines.txt", out)
        assert converted.made.label is None
        assert converted.preview[1:] == ["  line 1: text 'one'", "  line 3: text 'two'", "  line 4: text 'three'"]
        assert converted.rows == [{"text": [b"one"]}, {"text": [b"two"]}, {"text": [b"three"]}]


@pytest.fixture
def ships(tmp_path: Path) -> Path:
    """24 images; the categories are 1 to 5, as in the original."""
    folder = tmp_path / "ships"
    for number in range(24):
        _put(folder, f"images/28{number:02}.jpg", picture("jpeg", (16, 20), number))
    _write(folder, "image,category", *(f"28{number:02}.jpg,{number % 5 + 1}" for number in range(24)))
    return folder


def _write(ships: Path, *lines: str) -> None:
    (ships / "train.csv").write_text("".join(f"{line}\n" for line in lines))


def _convert(ships: Path, out: Path, **options: Any) -> Conversion:
    return conversion(ships / "train.csv", out, images=f"{ships}/images", **options)


def _run_command_of(problem: InvalidData) -> None:
    (command,) = re.findall(r"`mptj (.*?)`", problem.next_step)
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output


def test_each_row_is_its_image_and_its_label(ships: Path, out: Path) -> None:
    converted = _convert(ships, out, label="category")
    assert converted.made.features == (images(16, 20, 3), Feature(name="category", dtype="int64"))
    assert (converted.made.label, converted.made.classes) == ("category", ("1", "2", "3", "4", "5"))
    assert converted.made.class_counts == (5, 5, 5, 5, 4)
    message = "category: the values 1 to 5 are stored as classes 0 to 4; --label-as numbers stores the values"
    assert converted.notices == [message]
    assert converted.rows == [
        {"image": [(ships / "images" / f"28{n:02}.jpg").read_bytes()], "category": [n % 5]} for n in range(24)
    ]


def test_names_as_text_are_refused_with_the_command_to_type(ships: Path, out: Path) -> None:
    with pytest.raises(InvalidData, match=r"column 'image' holds names of image files, such as '2800\.jpg'") as caught:
        convert(str(ships / "train.csv"), str(out), label="category")
    assert not out.exists()
    _run_command_of(caught.value)
    assert len(records(f"{out}/*.tfrecord")[0]["image"][0]) > 100


def test_names_are_stored_as_text_when_columns_are_named_or_beside_the_images_bytes(ships: Path, out: Path) -> None:
    converted = conversion(ships / "train.csv", out, label="category", columns=["image"])
    assert converted.made.features[1] == Feature(name="image", dtype="string")
    table = pa.table({"name": ["a.png", "b.png"], "image": [picture("png"), picture("png")], "label": [0, 1]})
    pq.write_table(table, ships / "rows.parquet")
    assert Feature(name="name", dtype="string") in conversion(ships / "rows.parquet", f"{out}/rows").made.features


@pytest.mark.parametrize("form", ["image/{}.jpg", "./images/{}.jpg", "{}"])
def test_names_may_have_folders_or_no_suffix(source: Path, out: Path, form: str) -> None:
    pictures = {name: picture("jpeg", seed=int(name)) for name in ("007", "008")}
    for name, content in pictures.items():
        _put(source, f"image/{name}.jpg", content)
        _put(source, f"images/{name}.jpg", content)
    _put(source, "rows.csv", f"id,label\n{form.format('007')},0\n{form.format('008')},1\n".encode())
    folder = source / "image" if form == "{}" else source
    converted = conversion(source / "rows.csv", out, images=str(folder))
    assert [row["image"][0] for row in converted.rows] == list(pictures.values())


def test_the_label_must_be_named_when_it_cannot_be_known(ships: Path, out: Path) -> None:
    with pytest.raises(InvalidData, match="which column is the label") as caught:
        _convert(ships, out)
    _run_command_of(caught.value)


def test_other_columns_are_stored_on_request(ships: Path, out: Path) -> None:
    _write(ships, "image,label,age,port", "2800.jpg,a,3,x", "2801.jpg,b,5,y")
    converted = _convert(ships, out)
    assert [feature.name for feature in converted.made.features] == ["image", "label"]
    assert converted.notices == ["columns that are not stored: age, port; --columns age,port stores them"]
    converted = _convert(ships, out, columns=["age"], overwrite=True)
    assert [feature.name for feature in converted.made.features] == ["image", "age", "label"]
    assert [row["age"] for row in converted.rows] == [[3], [5]]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("image,label\n2800.jpg,1\n28001.jpg,2\n", {}, "row 1: no image '28001.jpg' in .*; 1 of 2 are missing.* skip"),
        ("image,label\n2800.jpg,1\n,2\n", {}, "column 'image': 1 row has no value, the first in line 3; .* drop leaves "
         "out 1 of 2 rows$"),
        ("image,label\n2800.jpg,1\nzz.jpg,\n", {}, "column 'label': 1 row has no label, .* drop leaves out 1 of 2"),
        ("image,label\n2800.jpg,1\n2801.jpg,\n", {}, "column 'label': 1 row has no label, the first in line 3"),
        ("image,label\na.jpg,1\nb.jpg,2\n", {}, r"no columns hold names of images in .*images"),
        ("image,copy,label\n2800.jpg,2800.jpg,1\n", {}, "2 columns hold names of images"),
        ("image,label\n2800.jpg,1\n", {"path_column": "imgae"}, "no column 'imgae' for --path-column.*'image'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(ships: Path, out: Path, text: str, arguments: dict[str, str], message: str) -> None:
    _write(ships, text.rstrip())
    with pytest.raises(InvalidData, match=message) as caught:
        _convert(ships, out, label="label", **arguments)
    assert str(caught.value).startswith(str(ships / "train.csv"))
    assert not out.exists()


def test_missing_and_damaged_images_are_skipped_on_request(ships: Path, out: Path) -> None:
    _put(ships, "images/2800.jpg", b"torn")
    (ships / "images" / "2801.jpg").unlink()
    converted = _convert(ships, out, label="category", bad_images="Skip", keep_order=False)
    assert (converted.made.records, converted.made.class_counts) == (22, (4, 4, 5, 5, 4))
    for start in ("skipped: row 1: no image '2801.jpg'", f"skipped: {ships}/images/2800.jpg: a damaged image"):
        assert any(line.startswith(start) for line in converted.notices)


def test_rows_without_a_name_a_label_or_a_group_are_left_out_on_request(ships: Path, out: Path) -> None:
    _write(
        ships,
        "image,label,who",
        "2800.jpg,1,a",
        ",0,a",
        "missing.jpg,,a",
        "2801.jpg,0,",
        "2802.jpg,0,b",
        "2803.jpg,1,b",
    )
    options: dict[str, Any] = {"group": "who", "validation_fraction": 0.5}
    with pytest.raises(InvalidData, match=r"column 'image': 1 row has no value.* 'who': 1 row has no value, the fi"):
        _convert(ships, out, **options)
    converted = _convert(ships, out, missing="Drop", **options)
    assert len(converted.rows) == 3
    assert any(line.startswith("--missing drop: 3 of 6 rows are left out: ") for line in converted.notices)


def test_names_alone_are_left_out_where_they_are_empty(ships: Path, out: Path) -> None:
    _write(ships, "image,port", "2800.jpg,x", ",y", "2801.jpg,x")
    converted = _convert(ships, out, columns=[], missing="Drop")
    assert (converted.made.records, converted.made.label) == (2, None)
    converted = _convert(ships, out, columns=[], bad_images="Skip", overwrite=True)
    assert converted.made.records == 2
    assert any(line.startswith("skipped: row 1: no image ''") for line in converted.notices)


def test_groups_stay_together(ships: Path, out: Path) -> None:
    _write(ships, "image,label,patient", *(f"28{n:02}.jpg,{n % 2},patient {n // 3}" for n in range(24)))
    train, validation = _convert(ships, out, validation_fraction=0.25, group="patient").splits
    assert (train.records, validation.records) == (18, 6)
    patient = {(ships / "images" / f"28{n:02}.jpg").read_bytes(): n // 3 for n in range(24)}
    split = [{patient[row["image"][0]] for row in records(f"{out}/{name}-*")} for name in ("train", "validation")]
    assert not split[0] & split[1]
    assert len(split[1]) == 2
