"""Images as people have them, converted and decoded; the reference is what Pillow shows or TensorFlow says."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mptraining_api.problems import InvalidData
from mptraining_api.resolve.defaults import resolve_data
from mptraining_api.spec import Data, Program
from mptraining_records.convert.convert import convert
from mptraining_records.index.verify import verify
from mptraining_records.tfrecord import features
from mptraining_trainer.data.dataset import open_data
from mptraining_trainer.data.decode import fault
from mptraining_trainer.data.pipeline import Split
from mptraining_trainer.data.stored_tensors import read

# Pillow warns, and then shows the image.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
GOLDEN = Path(__file__).parents[3] / "golden" / "images"
REFUSED = {"cut.jpg", "cut.png", "empty.png", "float.tif", "rgb.heic"}
Y, X = np.mgrid[0:8, 0:12]
COLOURS = np.stack([Y * 30, X * 20, (Y + X) * 12], -1).astype(np.uint8)
SIXTEEN = (Y * 6000 + X * 1500).astype(np.uint16)
PHOTO = Image.fromarray(COLOURS)
GREY = Image.fromarray(COLOURS[..., 1])
ALPHA = Image.fromarray((X * 20).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def transparent(image: Image.Image) -> Image.Image:
    return Image.merge(image.mode + "A", (*image.split(), ALPHA))


def oriented(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = number
    return exif


# fmt: off
KINDS: dict[str, bytes] = {
    **{f"exif{number}.jpg": encoded(PHOTO, "JPEG", exif=oriented(number)) for number in range(1, 9)},
    **{f"exif{number}.png": encoded(PHOTO, exif=oriented(number)) for number in (0, 3, 5, 9)},
    "exif7.webp": encoded(PHOTO, "WEBP", lossless=True, exif=oriented(7)),
    "exif2.tiff": encoded(PHOTO, "TIFF", exif=oriented(2)),
    "grey-alpha.png": encoded(transparent(GREY)), "rgba.png": encoded(transparent(PHOTO)),
    "grey-colour-key.png": encoded(GREY, transparency=20), "rgb-colour-key.png": encoded(PHOTO, transparency=(0, 0, 0)),
    "palette.png": encoded(PHOTO.quantize(16)), "palette-2-bits.png": encoded(PHOTO.quantize(4), bits=2),
    "palette-alpha.png": encoded(PHOTO.quantize(9), transparency=bytes(range(0, 180, 20))),
    "palette.gif": encoded(PHOTO.quantize(16), "GIF", transparency=2),
    "1.png": encoded(GREY.convert("1")), "1.bmp": encoded(GREY.convert("1"), "BMP"),
    "16.png": encoded(Image.fromarray(SIXTEEN)), "16.tif": encoded(Image.fromarray(SIXTEEN), "TIFF"),
    "16-big-endian.tif": encoded(Image.fromarray(SIXTEEN.astype(">u2")), "TIFF"),
    "32.tif": encoded(Image.fromarray(SIXTEEN.astype(np.int32)), "TIFF"),
    "16.pgm": b"P5 12 8 65535\n" + SIXTEEN.astype(">u2").tobytes(),
    "grey.jpg": encoded(GREY, "JPEG"), "cmyk.jpg": encoded(PHOTO.convert("CMYK"), "JPEG"),
    "narrow.jpg": encoded(PHOTO.resize((5, 3)), "JPEG"), "frames.jpg": encoded(PHOTO, "MPO", append_images=[GREY]),
    "ycbcr.tif": encoded(PHOTO.convert("YCbCr"), "TIFF"), "cmyk.tif": encoded(PHOTO.convert("CMYK"), "TIFF"),
    "lab.tif": encoded(PHOTO.convert("LAB"), "TIFF"), "grey-alpha.tif": encoded(transparent(GREY), "TIFF"),
    "frames.png": encoded(PHOTO, save_all=True, append_images=[PHOTO.transpose(Image.Transpose.ROTATE_180)]),
    "trailing.png": encoded(PHOTO) + b"\0" * 40, "trailing.jpg": encoded(PHOTO, "JPEG") + b"junk",
    "wrong-exif.jpg": encoded(PHOTO, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01"),
    **{path.name: path.read_bytes() for path in sorted(GOLDEN.glob("*.*")) if path.suffix != ".md"},
}
# fmt: on


def shown(content: bytes, channels: int) -> NDArray[Any]:
    """Return the pixels that Pillow shows; of 16 bits the upper 8, since its own conversion clips them."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    if image.mode.startswith("I"):
        return np.asarray(image, np.int64)[..., None] >> 8
    pixels = np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]), np.int64)
    return pixels.reshape(image.height, image.width, channels)


def opened(folder: Path, **fields: Any) -> Split:
    program = Program.parse({"function": {"entryPoint": "model:build"}})
    data = resolve_data(Data.parse({"train": [f"{folder}/*.tfrecord"], **fields}), program)[0]
    return open_data(data.train, data, training_columns=None, notice=lambda topic, text: None, now=lambda: 0.0)


def convert_file(folder: Path, name: str, **options: Any) -> Path:
    """Convert the image of KINDS alone; return the folder of its record."""
    (folder / "source").mkdir()
    (folder / "source" / name).write_bytes(KINDS[name])
    convert(str(folder / "source"), str(folder / "out"), **options)
    return folder / "out"


def decoded(split: Split) -> dict[str, NDArray[Any]]:
    """Return the tensors of the first record."""
    columns = split.columns.columns
    record = split.reader.read(np.zeros(1, np.int64))[0]
    return {column.name: tensor.numpy()[0] for column, tensor in zip(columns, read(tf.constant([record]), columns))}  # noqa: B905


@pytest.mark.parametrize("name", sorted(KINDS.keys() - REFUSED))
def test_a_job_gets_what_pillow_shows(tmp_path: Path, name: str) -> None:
    for folder in ("a", "b"):
        (tmp_path / "source" / folder).mkdir(parents=True)
        (tmp_path / "source" / folder / f"{folder}-{name}").write_bytes(KINDS[name])
    (made,) = convert(str(tmp_path / "source"), str(tmp_path / "out"), label="label")
    assert verify([f"{tmp_path}/out/*.tfrecord"]).bad == ()
    image = decoded(opened(tmp_path / "out"))["image"].astype(np.int64)
    expected = shown(KINDS[name], int(image.shape[-1]))
    assert image.shape == expected.shape
    # TensorFlow's and Pillow's JPEG decoders round differently, and a turned JPEG is encoded again.
    assert np.abs(image - expected).max() <= (10 if made.features[0].decode == "jpeg" else 0)


@pytest.mark.parametrize(
    "name", ["exif6.jpg", "exif5.png", "16.png", "1.png", "palette.png", "cmyk.jpg", "grey-alpha.png", "rgb16.png"]
)
def test_photos_are_turned_then_resized(tmp_path: Path, name: str) -> None:
    out = convert_file(tmp_path, name, image_size=(6, 5))
    image = decoded(opened(out, labels=[]))["image"].astype(np.int64)
    full = shown(KINDS[name], image.shape[-1]).astype(np.float32)
    expected = tf.image.resize(full, (6, 5), antialias=True).numpy()
    if name == "grey-alpha.png":
        # Pillow weights colours by their transparency.
        image, expected = image[..., 3:], expected[..., 3:]
    assert np.abs(image - expected).max() <= (12 if name.endswith("jpg") else 2)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_others_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidData, match=r"black and white are not known|a damaged image") as caught:
        convert_file(tmp_path, name)
    assert caught.value.where.endswith(name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_check_of_an_image_agrees_with_tensorflow(channels: int) -> None:
    """What it accepts is decoded; what it refuses is not, at least of JPEG and PNG."""
    for name, content in KINDS.items():
        try:
            tf.io.decode_image(content, channels, expand_animations=False)
            reads = True
        except (tf.errors.InvalidArgumentError, ValueError):
            reads = False
        found = features.image_fault(content, (None, None, channels))
        assert reads or found is not None, name
        if features.image_kind(content):
            assert (found is None) == reads, (name, found)
    assert features.image_fault(encoded(PHOTO), (8, None, 3)) is None
    assert features.image_fault(encoded(PHOTO), (8, 13, 3)) == "its size is 8x12; expected 8x13"


@pytest.mark.parametrize("name", ["palette.png", "16.png", "rgb.png", "grey.jpg"])
def test_so_it_does_for_damaged_images(name: str) -> None:
    whole = encoded(PHOTO) if name == "rgb.png" else KINDS[name]
    cut = [whole[:length] for length in range(12, len(whole), 3)]
    flipped = [whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :] for at in range(8, len(whole), 3)]
    for content in [*cut, *flipped]:
        try:
            tf.io.decode_image(content, 3, expand_animations=False)
        except tf.errors.InvalidArgumentError:
            assert features.image_fault(content, (None, None, 3)) is not None, content


@pytest.mark.parametrize(("name", "dtype"), [("16.png", "uint16"), ("16.tif", "int32"), ("16.pgm", "int64")])
def test_a_type_that_holds_16_bits_gets_them(tmp_path: Path, name: str, dtype: str) -> None:
    described = [{"name": "image", "dtype": dtype, "shape": [8, 12, 1], "decode": "png"}]
    image = decoded(opened(convert_file(tmp_path, name), features=described, labels=[]))["image"]
    assert image.dtype == dtype
    assert np.array_equal(image[..., 0], SIXTEEN)


CLASSES = np.zeros((20, 30), np.uint8)
CLASSES[5:12, 4:20], CLASSES[9:18, 15:29] = 1, 5


PALETTE = Image.new("P", (30, 20))
PALETTE.putdata(CLASSES.ravel().tolist())
PALETTE.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0, 0, 0, 128, 128, 0, 128])
COLOURED = PALETTE.convert("RGB")

# fmt: off
MASKS: Mapping[str, tuple[bytes, NDArray[Any]]] = {
    "grey.png": (encoded(Image.fromarray(CLASSES)), CLASSES),
    "palette.png": (encoded(PALETTE), CLASSES),
    "palette-4-bits.png": (encoded(PALETTE, bits=4), CLASSES),
    "palette-transparent.png": (encoded(PALETTE, transparency=0), CLASSES),
    "palette.bmp": (encoded(PALETTE, "BMP"), CLASSES),
    "palette.tif": (encoded(PALETTE, "TIFF"), CLASSES),
    "grey-alpha.png": (encoded(Image.merge("LA", [Image.fromarray(CLASSES)] * 2)), CLASSES),
    "grey-colour-key.png": (encoded(Image.fromarray(CLASSES), transparency=0), CLASSES),
    "16-bits.png": (encoded(Image.fromarray(CLASSES.astype(np.uint16) * 1000)), CLASSES.astype(int) * 1000),
    "16-bits.tif": (encoded(Image.fromarray(CLASSES.astype(np.uint16) * 1000), "TIFF"), CLASSES.astype(int) * 1000),
    "turned.png": (encoded(Image.fromarray(CLASSES), exif=oriented(6)), np.rot90(CLASSES, -1)),
    "colours.png": (encoded(COLOURED), np.asarray(COLOURED)),
}
# fmt: on


class Test_masks_of_class_numbers:
    def _convert(self, folder: Path, name: str, size: tuple[int, int] | None = None) -> Split:
        for place, content in (("photo/1.jpg", encoded(PHOTO, "JPEG")), (f"mask/1{name[-4:]}", MASKS[name][0])):
            (folder / place).parent.mkdir()
            (folder / place).write_bytes(content)
        pairs = {each: str(folder / each) for each in ("photo", "mask")}
        convert(None, str(folder / "out"), pairs=pairs, image_size=size)
        assert verify([f"{folder}/out/*.tfrecord"]).bad == ()
        return opened(folder / "out")

    @pytest.mark.parametrize("name", sorted(MASKS))
    def test_keep_their_numbers(self, tmp_path: Path, name: str) -> None:
        mask = decoded(self._convert(tmp_path, name))["mask"]
        assert np.array_equal(np.squeeze(mask), MASKS[name][1])

    @pytest.mark.parametrize("name", ["palette.png", "16-bits.png", "turned.png", "colours.png"])
    def test_are_resized_without_new_numbers(self, tmp_path: Path, name: str) -> None:
        mask, numbers = decoded(self._convert(tmp_path, name, (11, 7)))["mask"], MASKS[name][1]
        assert mask.shape[:2] == (11, 7)
        expected = tf.image.resize(numbers.reshape(*numbers.shape[:2], -1), (11, 7), "nearest")
        # Where the middle of a pixel is between two, Pillow and TensorFlow choose another one.
        assert np.mean(mask == expected.numpy()) > 0.9
        assert set(np.unique(mask)) == set(np.unique(numbers))

    @pytest.mark.parametrize("name", ["grey.png", "16-bits.png", "colours.png"])
    def test_are_resized_without_new_numbers_in_the_job(self, tmp_path: Path, name: str) -> None:
        columns, numbers = self._convert(tmp_path, name).columns.columns, MASKS[name][1]
        described = [
            {"name": column.name, "dtype": column.dtype, "shape": column.shape, "decode": "png", "resize": [11, 7]}
            for column in columns
        ]
        mask = decoded(opened(tmp_path / "out", features=described, label="mask"))["mask"]
        expected = tf.image.resize(numbers.reshape(*numbers.shape[:2], -1), (11, 7), "nearest")
        assert np.array_equal(mask, expected.numpy())


def test_a_photo_that_is_a_label_is_resized_as_one(tmp_path: Path) -> None:
    for folder in ("small", "label"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").write_bytes(encoded(PHOTO, "JPEG", quality=95, subsampling=0))
    pairs = {each: str(tmp_path / each) for each in ("small", "label")}
    convert(None, str(tmp_path / "out"), pairs=pairs, image_size=(4, 6))
    tensors = decoded(opened(tmp_path / "out"))
    assert np.array_equal(tensors["small"], tensors["label"])


def test_a_class_number_beyond_the_type_is_an_error(tmp_path: Path) -> None:
    Test_masks_of_class_numbers()._convert(tmp_path, "16-bits.png")
    described = [
        {"name": "photo", "dtype": "uint8", "shape": [8, 12, 3], "decode": "jpeg"},
        {"name": "mask", "dtype": "uint8", "shape": [20, 30, 1], "decode": "png"},
    ]
    split = opened(tmp_path / "out", features=described, label="mask")
    record = split.reader.read(np.zeros(1, np.int64))[0]
    cause = fault(split.columns, record or b"")
    assert cause is not None
    assert cause.startswith("feature 'mask' cannot be decoded: ")
    assert "a number that is no uint8" in cause


def test_images_in_a_table_are_as_those_of_files(tmp_path: Path) -> None:
    photo, other = KINDS["exif6.jpg"], encoded(PHOTO, "WEBP", lossless=True)
    columns = {"photo": [photo] * 2, "other": [other] * 2, "label": [MASKS["palette.png"][0]] * 2}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    notices: list[str] = []
    convert(str(tmp_path / "a.parquet"), str(tmp_path / "out"), notice=notices.append)
    assert notices == [
        "photo: 2 images turned upright by EXIF orientation",
        "label: 2 images with a palette, whose indices are stored instead of its colours",
    ]
    tensors = decoded(opened(tmp_path / "out"))
    assert np.abs(tensors["photo"].astype(int) - shown(photo, 3)).max() <= 10
    assert np.array_equal(tensors["other"], shown(other, 3))
    assert np.array_equal(tensors["label"][..., 0], CLASSES)
