from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mptraining.cli.main import app
from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.storage import storage
from mptraining_records.tfrecord.features import Feature
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


def test_images_without_sub_folders_have_no_label_and_more_than_are_read_ahead_stay_in_order(
    source: Path, out: Path
) -> None:
    pictures = [_put(source, f"{n:03}.png", picture("png", (3, 3), n)) for n in range(100)]
    (made,) = convert(str(source), str(out), keep_order=True)
    assert (made.label, made.classes) == (None, None)
    assert _rows(out) == [(image, None) for image in pictures]


def test_sizes_that_differ_leave_the_shape_open(source: Path, out: Path) -> None:
    _put(source, "1.jpg", picture("jpeg", (40, 50)))
    _put(source, "2.jpg", picture("jpeg", (41, 50), mode="L"))
    (made,) = convert(str(source), str(out))
    assert made.features[0].shape == (None, 50, 3)


def test_a_size_resizes_and_keeps_the_encoding(source: Path, out: Path) -> None:
    _put(source, "a/1.jpg", picture("jpeg"))
    _put(source, "b/1.jpg", picture("jpeg"))
    (made,) = convert(str(source), str(out), image_size=(20, 30), label="flower")
    assert made.features == (
        Feature(name="image", dtype="uint8", shape=(20, 30, 3), decode="jpeg"),
        Feature(name="flower", dtype="int64"),
    )


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
def test_folders_that_cannot_be_converted_are_refused(
    source: Path, out: Path, files: dict[str, bytes], message: str
) -> None:
    for name, content in files.items():
        _put(source, name, content)
    with pytest.raises(InvalidData, match=message) as caught:
        convert(str(source), str(out), label="label")
    assert "\n" not in str(caught.value)


class Test_folders_that_are_no_classes:
    """Each was converted to classes without a message; the error names the command for what the folder is."""

    def _command(self, source: Path, out: Path, said: str) -> list[list[str]]:
        """Return the arguments of the commands in the error, after checking that each can be typed as it is."""
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
        for number in range(3):
            _put(source, f"images/{number}.jpg", picture("jpeg"))
        said = "all images are in one sub-folder, 'images', which would be the only class"
        assert self._command(source, out, said) == [["records", "convert", f"{source}/images", str(out)]]

    def test_one_sub_folder_beside_a_table_has_its_labels_there(self, source: Path, out: Path) -> None:
        for number in range(4):
            _put(source, f"images/{number}.jpg", picture("jpeg"))
        _put(source, "train.csv", b"image,category\n" + b"".join(b"%d.jpg,%d\n" % (n, n % 2) for n in range(4)))
        (command,) = self._command(source, out, "all images are in one sub-folder")
        assert command[:4] == ["records", "convert", f"{source}/train.csv", str(out)]
        assert command[4:] == ["--images", f"{source}/images", "--path-column", "image", "--label", "category"]

    def test_sub_folders_called_like_splits_are_splits(self, source: Path, out: Path) -> None:
        for name in ("train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/4.png"):
            _put(source, name, picture("png"))
        commands = self._command(source, out, "the sub-folders 'test', 'train' are called like splits")
        assert [command[-2:] for command in commands] == [["--name", "test"], ["--name", "train"]]

    @pytest.mark.parametrize(
        "names",
        [("blurred/1.jpg", "sharp/1.jpg"), ("sharp/1_S.jpg", "blurred/1_M.png", "sharp/2_S.jpg", "blurred/2_M.png")],
    )
    def test_two_folders_with_the_same_names_may_be_pairs(self, source: Path, out: Path, names: list[str]) -> None:
        for name in names:
            _put(source, name, picture("png"))
        pairs, classes = self._command(source, out, "'blurred' and 'sharp' have the same names; expected")
        assert pairs == [
            *("records", "convert", str(out), "--pairs"),
            f"input={source}/blurred",
            f"target={source}/sharp",
        ]
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
        (made,) = convert(f"{source}/lines.txt", str(out), keep_order=True)
        assert (made.label, made.records) == (None, 3)
        assert [row["text"] for row in records(f"{out}/*.tfrecord")] == [[b"one"], [b"two"], [b"three"]]
