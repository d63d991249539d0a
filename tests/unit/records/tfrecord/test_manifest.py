from __future__ import annotations

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.manifest import File, Manifest
from mptraining_storage import storage

FEATURES = (Feature(name="label", dtype="int64"), Feature(name="x", dtype="float32", shape=(3, None)))


def _split(name: str, shards: int = 2, **more: object) -> Manifest:
    files = [
        File(name=f"{name}-{number:05}-of-{shards:05}.tfrecord", records=10 + number, bytes=100, crc32c=7)
        for number in range(shards)
    ]
    records = sum(file.records for file in files)
    fields = {"name": name, "features": FEATURES, "label": "label", "records": records, "files": files}
    return Manifest.model_validate(fields | more)


def test_a_pattern_finds_the_manifest_of_its_split(folder: str) -> None:
    for name in ("train", "validation"):
        manifest.save(folder, _split(name))
    for pattern in ("train-*", "train-*.tfrecord", "train-0000?-of-00002.tfrecord"):
        assert manifest.find([storage.join(folder, pattern)]) == _split("train")
    assert manifest.find([storage.join(folder, "validation-*")]) == _split("validation")


def test_a_part_of_a_split_counts_its_own_records(folder: str) -> None:
    manifest.save(folder, _split("train"))
    found = manifest.find([storage.join(folder, "train-00001-*")])
    assert found is not None
    assert found.records == 11
    assert [file.name for file in found.files] == ["train-00001-of-00002.tfrecord"]


def test_splits_named_together_are_one(folder: str) -> None:
    manifest.save(folder, _split("train"))
    manifest.save(storage.join(folder, "more"), _split("train", shards=3))
    patterns = [storage.join(folder, "*.tfrecord"), storage.join(folder, "more", "*.tfrecord")]
    found = manifest.find([*patterns, patterns[0]])
    assert found is not None
    assert found.records == 10 + 11 + 10 + 11 + 12
    assert len(found.files) == 5


@pytest.mark.parametrize("different", [{"features": FEATURES[:1]}, {"label": None}, {"classes": ("a",)}])
def test_splits_that_differ_are_refused(folder: str, different: dict[str, object]) -> None:
    manifest.save(folder, _split("train"))
    manifest.save(folder, _split("validation", **different))
    with pytest.raises(InvalidData, match=f"its {next(iter(different))} differ"):
        manifest.find([storage.join(folder, "*.tfrecord")])


def test_no_manifest_is_no_mistake(folder: str) -> None:
    assert manifest.find([storage.join(folder, "nowhere", "*.tfrecord")]) is None
    manifest.save(folder, _split("train"))
    assert manifest.find([storage.join(folder, "test-*")]) is None


def test_it_is_beside_the_shards_and_fields_of_a_newer_version_are_ignored(folder: str) -> None:
    split = _split("train", classes=("cat", "dog"))
    uri = manifest.save(folder, split)
    assert uri == storage.join(folder, "train-manifest.json")
    storage.write(uri, storage.read(uri).replace(b"{", b'{"later": 1,', 1))
    assert manifest.load(uri) == split


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2}', b"\xff"])
def test_what_is_no_manifest_is_refused_in_one_line(folder: str, content: bytes) -> None:
    uri = storage.join(folder, "train-manifest.json")
    storage.write(uri, content)
    with pytest.raises(InvalidData, match="not a manifest") as caught:
        manifest.find([storage.join(folder, "train-*")])
    assert "\n" not in str(caught.value)
