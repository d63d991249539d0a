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
from tests.unit.records.convert.pictures import conversion, images

PETS = Path(__file__).parent / "tfds_pets"


def test_the_supervised_keys_are_stored(tmp_path: Path) -> None:
    converted = conversion(PETS, tmp_path)
    made = converted.made
    assert made.features == (images(8, 8, 3, decode="png"), Feature(name="label", dtype="int64"))
    assert (made.label, made.classes, made.class_counts) == ("label", ("cat", "dog"), (12, 12))
    others = "box, file_name, flag, nested/n, raw, tensor, words"
    assert converted.notices == [f"features that are not stored: {others}; --columns selects others"]


def test_every_fixed_feature_can_be_stored(tmp_path: Path) -> None:
    converted = conversion(PETS, tmp_path, columns=["box", "file_name", "flag", "image", "nested/n", "raw", "tensor"])
    assert converted.made.features == (
        Feature(name="box", dtype="float32", shape=(4,)),
        Feature(name="file_name", dtype="string"),
        Feature(name="flag", dtype="bool"),
        images(8, 8, 3, decode="png"),
        Feature(name="label", dtype="int64"),
        Feature(name="nested/n", dtype="int64"),
        Feature(name="raw", dtype="uint8", shape=(4,), decode="raw"),
        Feature(name="tensor", dtype="float32", shape=(2, 3)),
    )
    rows = sorted(converted.rows, key=lambda row: int(row["nested/n"][0]))
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
        }
    assert len(rows) == 24


def test_the_name_selects_the_split(tmp_path: Path, bucket: str) -> None:
    for path in PETS.iterdir():
        storage.upload(path, f"{bucket}/pets/1.0.0/{path.name}")
    assert conversion(f"{bucket}/pets/1.0.0", tmp_path, name="test").made.records == 6
    message = r"no split 'val' in dataset_info\.json; expected --name with one of 'train', "
    with pytest.raises(InvalidData, match=message):
        convert(str(PETS), str(tmp_path), name="val")


def test_a_validation_split_has_its_share_of_each_class(tmp_path: Path) -> None:
    train, validation = convert(str(PETS), str(tmp_path), validation_fraction=0.25)
    assert (train.class_counts, validation.class_counts) == ((9, 9), (3, 3))


def test_sequences_are_features_of_varying_length(tmp_path: Path) -> None:
    converted = conversion(PETS, tmp_path, columns=["words", "nested/n"], keep_order=False)
    assert Feature(name="words", dtype="string", shape=(None,)) in converted.made.features
    for row in converted.rows:
        assert row["words"] == [b"a"] * (row["nested/n"][0] % 3)


def test_an_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"no column 'wrods' for --columns.*Did you mean 'words'"):
        convert(str(PETS), str(tmp_path), columns=["wrods"])


class Test_the_folder_itself_as_the_destination:
    @pytest.fixture(params=["local", "bucket"])
    def pets(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        to = str(tmp_path) if request.param == "local" else request.getfixturevalue("bucket")
        for path in PETS.iterdir():
            storage.upload(path, f"{to}/pets/{path.name}")
        return f"{to}/pets"

    def test_gets_a_manifest_and_keeps_its_shards(self, pets: str) -> None:
        before = {stored.name: stored.version for stored in storage.list_objects(pets)}
        (made,) = convert(pets, f"{pets}/", columns=["image", "words"])
        after = {stored.name: stored.version for stored in storage.list_objects(pets) if "/.index/" not in stored.uri}
        assert before.items() <= after.items()
        assert after.keys() - before.keys() == {"train-manifest.json"}
        assert manifest.find([f"{pets}/*-train.tfrecord*"]) == made
        assert (made.records, made.class_counts, made.permutation_seed) == (24, (12, 12), None)
        assert made.label_correlation is not None
        (file,) = made.files
        content = storage.read(f"{pets}/{file.name}")
        assert (file.bytes, file.crc32c) == (len(content), google_crc32c.value(content))
        assert verify.verify([f"{pets}/*-train.tfrecord*"]).bad == ()
        for stored in storage.glob(f"{pets}/*-train.tfrecord*") if storage.is_remote(pets) else ():
            assert index_in_sidecar(stored) is not None

    @pytest.mark.parametrize("options", [{"validation_fraction": 0.5}, {"shard_bytes": 1000}])
    def test_is_refused_where_other_files_are_needed(self, pets: str, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidData, match=r"need new files; .*Name another folder to write to"):
            convert(pets, pets, **options)


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
def test_other_files_are_refused(tmp_path: Path, file: str, content: str, message: str) -> None:
    pets = tmp_path / "pets"
    shutil.copytree(PETS, pets)
    (pets / file).write_text(content)
    with pytest.raises(InvalidData, match=message):
        convert(str(pets), str(tmp_path / "out"), columns=["words"])
