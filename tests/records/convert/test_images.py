from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.index import dataset_index
from mptraining_records.reading.reader import RecordReader
from mptraining_records.storage import storage
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.features import Feature


def _picture(kind: str, size: tuple[int, int] = (40, 50), seed: int = 0, mode: str = "RGB") -> bytes:
    """Return an encoded image of noise; `size` is (height, width)."""
    noise = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(content, kind)
    return content.getvalue()


def _rows(folder: Path) -> list[tuple[bytes, int | None]]:
    """Return the image and the label of every record."""
    dataset = dataset_index.build([f"{folder}/*.tfrecord"])
    with RecordReader(dataset) as reader:
        parsed = [example.parse(record or b"") for record in reader.read(np.arange(dataset.count))]
    return [(row["image"][1][0], int(row["label"][1][0]) if "label" in row else None) for row in parsed]


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
        pictures[name] = _put(source, name, _picture("jpeg", seed=number))
    (made,) = convert(str(source), str(out))
    assert made.classes == ("daisies", "tulips")
    assert made.features == (
        Feature(name="image", dtype="uint8", shape=(40, 50, 3), decode="jpeg"),
        Feature(name="label", dtype="int64"),
    )
    assert _rows(out) == [
        (pictures[name], label)
        for name, label in [
            ("daisies/1.jpeg", 0),
            ("daisies/4.jpg", 0),
            ("tulips/2.JPG", 1),
            ("tulips/deep/3.jpg", 1),
        ]
    ]


def test_more_images_than_are_read_ahead_stay_in_order(source: Path, out: Path) -> None:
    pictures = [_put(source, f"a/{n:03}.png", _picture("png", (3, 3), n)) for n in range(100)]
    convert(str(source), str(out))
    assert [image for image, _ in _rows(out)] == pictures


def test_images_without_sub_folders_have_no_label(source: Path, out: Path) -> None:
    picture = _put(source, "1.png", _picture("png"))
    (made,) = convert(str(source), str(out))
    assert (made.label, made.classes) == (None, None)
    assert _rows(out) == [(picture, None)]


def test_sizes_that_differ_leave_the_shape_open(source: Path, out: Path) -> None:
    _put(source, "a/1.jpg", _picture("jpeg", (40, 50)))
    _put(source, "a/2.jpg", _picture("jpeg", (41, 50), mode="L"))
    (made,) = convert(str(source), str(out))
    assert made.features[0].shape == (None, 50, 3)


def test_other_formats_become_png_without_loss(source: Path, out: Path) -> None:
    _put(source, "a/1.bmp", _picture("bmp"))
    (made,) = convert(str(source), str(out))
    assert made.features[0].decode == "png"
    ((image, _),) = _rows(out)
    assert np.array_equal(np.array(Image.open(io.BytesIO(image))), np.array(Image.open(source / "a" / "1.bmp")))


def test_a_size_resizes_and_keeps_the_encoding(source: Path, out: Path) -> None:
    _put(source, "a/1.jpg", _picture("jpeg"))
    (made,) = convert(str(source), str(out), image_size=(20, 30), label="flower")
    assert made.features == (
        Feature(name="image", dtype="uint8", shape=(20, 30, 3), decode="jpeg"),
        Feature(name="flower", dtype="int64"),
    )


def test_other_files_are_skipped_and_reported(source: Path, out: Path) -> None:
    _put(source, "a/1.jpg", _picture("jpeg"))
    for name in ("LICENSE.txt", "a/.DS_Store", "a/._1.jpg"):
        _put(source, name, b"something else")
    said: list[str] = []
    convert(str(source), str(out), notice=said.append)
    assert said == ["3 files that are not images are skipped"]
    assert len(_rows(out)) == 1


def test_folders_in_a_bucket(bucket: str, out: Path) -> None:
    for name in ("b/2.png", "a/1.png"):
        storage.write(f"{bucket}/pictures/{name}", _picture("png"))
    (made,) = convert(f"{bucket}/pictures/", str(out))
    assert made.classes == ("a", "b")
    assert made.records == 2


@pytest.mark.parametrize(
    "content",
    [_picture("jpeg")[:-300], _picture("png")[:-300], _picture("jpeg")[:20], b"", b"no image"],
    ids=["jpeg cut", "png cut", "jpeg header", "empty", "text"],
)
def test_a_damaged_image_is_named(source: Path, out: Path, content: bytes) -> None:
    _put(source, "a/1.jpg", _picture("jpeg"))
    _put(source, "a/2.jpg", content)
    with pytest.raises(InvalidData, match="a damaged image") as caught:
        convert(str(source), str(out))
    assert str(caught.value).startswith(str(source / "a" / "2.jpg"))
    assert "\n" not in str(caught.value)


def test_a_folder_without_images_is_refused(source: Path, out: Path) -> None:
    _put(source, "README.txt", b"")
    with pytest.raises(InvalidData, match="no image in this folder"):
        convert(str(source), str(out))


def test_images_beside_the_classes_are_refused(source: Path, out: Path) -> None:
    _put(source, "a/1.png", _picture("png"))
    _put(source, "stray.png", _picture("png"))
    with pytest.raises(InvalidData, match=r"images beside the sub-folders, such as 'stray\.png'"):
        convert(str(source), str(out))
