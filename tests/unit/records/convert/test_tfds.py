"""Folder of TensorFlow Datasets: `tfds_pets` was written by tensorflow-datasets 4.9.10, with a builder of these rows:

    rng = np.random.default_rng(1)
    {"image": rng.integers(0, 255, (8, 8, 3), np.uint8), "label": i % 2, "file_name": f"{i}.png",
     "box": BBox(0., 0., .5, 1.), "tensor": np.full((2, 3), i, np.float32), "raw": np.full(4, i, np.uint8),
     "flag": i % 2 == 0, "nested": {"n": i}, "words": ["a"] * (i % 3)}

for i below 24 (train) and 6 (test); raw is Tensor(encoding="bytes"), words a Sequence(Text()); cat and dog are the
classes, and ("image", "label") the supervised keys.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from PIL import Image

from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.index import verify
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage
from tests.testbed.record_files import index_in_sidecar
from tests.unit.records.convert.pictures import images, records

PETS = Path(__file__).parent / "tfds_pets"
SHARDS = "*-train.tfrecord*"


@pytest.fixture(params=["local", "bucket"])
def pets(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    to = str(tmp_path) if request.param == "local" else request.getfixturevalue("bucket")
    for path in PETS.iterdir():
        storage.upload(path, f"{to}/pets/{path.name}")
    return f"{to}/pets"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(shutil.copytree(PETS, tmp_path / "pets"))


def test_the_folder_gets_a_manifest_and_keeps_its_shards(pets: str) -> None:
    before = {stored.name: stored.version for stored in storage.list_objects(pets)}
    (made,) = convert(pets, f"{pets}/", columns=["image", "words"])
    after = {stored.name: stored.version for stored in storage.list_objects(pets) if "/.index/" not in stored.uri}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"train-manifest.json"}
    assert manifest.find([f"{pets}/{SHARDS}"]) == made
    assert (made.records, made.class_counts, made.permutation_seed) == (24, (12, 12), None)
    assert made.label_correlation is not None
    (file,) = made.files
    content = storage.read(f"{pets}/{file.name}")
    assert (file.bytes, file.crc32c) == (len(content), google_crc32c.value(content))
    assert verify.verify([f"{pets}/{SHARDS}"]).bad == ()
    for stored in storage.glob(f"{pets}/{SHARDS}") if storage.is_remote(pets) else ():
        assert index_in_sidecar(stored) is not None


def test_a_dry_run_writes_no_manifest(pets: str) -> None:
    lines: list[str] = []
    assert convert(pets, pets, dry_run=True, preview=lines.append) == []
    assert lines == ["24 records; label: label"]
    assert manifest.find([f"{pets}/{SHARDS}"]) is None


def test_the_supervised_keys_are_described(folder: str) -> None:
    notices: list[str] = []
    (made,) = convert(folder, folder, notice=notices.append)
    assert made.features == (images(8, 8, 3, decode="png"), Feature(name="label", dtype="int64"))
    assert (made.label, made.classes, made.class_counts) == ("label", ("cat", "dog"), (12, 12))
    others = "box, file_name, flag, nested/n, raw, tensor, words"
    assert notices == [f"features that are not described: {others}; --columns selects others"]


def test_every_feature_can_be_described(folder: str) -> None:
    names = ["box", "file_name", "flag", "image", "nested/n", "raw", "tensor", "words"]
    (made,) = convert(folder, folder, columns=names)
    assert made.features == (
        Feature(name="box", dtype="float32", shape=(4,)),
        Feature(name="file_name", dtype="string"),
        Feature(name="flag", dtype="bool"),
        images(8, 8, 3, decode="png"),
        Feature(name="label", dtype="int64"),
        Feature(name="nested/n", dtype="int64"),
        Feature(name="raw", dtype="uint8", shape=(4,), decode="raw"),
        Feature(name="tensor", dtype="float32", shape=(2, 3)),
        Feature(name="words", dtype="string", shape=(None,)),
    )
    rows = sorted(records(f"{folder}/{SHARDS}"), key=lambda row: int(row["nested/n"][0]))
    pixels = np.random.default_rng(1)
    for number, row in enumerate(rows):
        image = np.array(Image.open(io.BytesIO(row.pop("image")[0])))
        assert np.array_equal(image, pixels.integers(0, 255, (8, 8, 3), np.uint8))
        assert row == {
            "box": [0, 0, 0.5, 1],
            "file_name": [b"%d.png" % number],
            "flag": [number % 2 == 0],
            "label": [number % 2],
            "nested/n": [number],
            "raw": [bytes([number]) * 4],
            "tensor": [number] * 6,
            "words": [b"a"] * (number % 3),
        }
    assert len(rows) == 24


def test_the_name_selects_the_split(folder: str) -> None:
    (made,) = convert(folder, folder, name="test")
    assert made.records == 6
    message = r"no split 'val' in dataset_info\.json; expected --name with one of 'train', "
    with pytest.raises(InvalidData, match=message):
        convert(folder, folder, name="val")


def test_an_unknown_column_names_the_nearest(folder: str) -> None:
    with pytest.raises(InvalidData, match=r"no column 'wrods' for --columns.*Did you mean 'words'"):
        convert(folder, folder, columns=["wrods"])


@pytest.mark.parametrize("options", [{"validation_fraction": 0.5}, {"shard_bytes": 1000}, {"image_size": (8, 8)}])
def test_options_that_need_new_files_are_refused(folder: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidData, match=r"need new files.*Resize in data\.features"):
        convert(folder, folder, **options)


def test_another_destination_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"used where they are.*Copy the folder there first"):
        convert(folder, str(tmp_path / "out"))


NESTED = '{"featuresDict": {"features": {"words": {"sequence": {"feature": {"sequence": {"feature": {"text": {}}}}}}}}}'
OTHER = '{"fileFormat": "array_record", "splits": [{"name": "train"}]}'


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("features.json", '{"type": "FeaturesDict"}', "no featuresDict"),
        ("features.json", "{", "not JSON"),
        ("features.json", NESTED, "feature 'words' is a sequence of sequences.*Select other features"),
        ("dataset_info.json", OTHER, "'array_record'; expected tfrecord"),
    ],
    ids=["no features", "no JSON", "nested sequences", "another format"],
)
def test_other_files_are_refused(folder: str, file: str, content: str, message: str) -> None:
    (Path(folder) / file).write_text(content)
    with pytest.raises(InvalidData, match=message):
        convert(folder, folder, columns=["words"])
