from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert import shards
from mptraining_records.convert.convert import convert
from mptraining_records.index import scanner
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from tests.testbed.record_files import index_in_sidecar
from tests.unit.records.convert.pictures import conversion, picture, records


def _numbers(folder: str, split: str) -> list[int]:
    """Return the row numbers that the records of a split contain, in their order."""
    return [int(row["x"][0]) for row in records(storage.join(folder, f"{split}-*.tfrecord"))]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A source of 1000 rows that contain their own number, in another folder than the destination's."""
    np.savez(tmp_path / "rows.npz", x=np.arange(1000), label=np.arange(1000) % 3)
    return str(tmp_path / "rows.npz")


@pytest.fixture
def destination(folder: str) -> str:
    return storage.join(folder, "out")


def test_shards_hold_the_rows_and_the_manifest_describes_them(rows: str, destination: str) -> None:
    (made,) = convert(rows, destination, shard_bytes=10_000, keep_order=True)
    assert _numbers(destination, "train") == list(range(1000))
    assert made == manifest.find([storage.join(destination, "train-*")])
    assert (made.records, made.label) == (1000, "label")
    assert made.features == (Feature(name="label", dtype="int64"), Feature(name="x", dtype="int64"))
    total = len(made.files)
    assert total > 2
    assert [file.name for file in made.files] == [f"train-{at:05}-of-{total:05}.tfrecord" for at in range(total)]
    for file in made.files:
        content = storage.read(storage.join(destination, file.name))
        assert (len(content), google_crc32c.value(content)) == (file.bytes, file.crc32c)
        assert file.records > 0
    names = [each.name for each in storage.list_objects(destination) if "/.index/" not in each.uri]
    assert names == [*(file.name for file in made.files), "train-manifest.json"]
    for stored in storage.glob(f"{destination}/*.tfrecord") if storage.is_remote(destination) else ():
        kept, scanned = index_in_sidecar(stored), scanner.scan(stored)
        assert kept is not None
        assert kept.checksum == scanned.checksum
        assert np.array_equal(kept.offsets, scanned.offsets)


def test_the_seed_selects_the_rows_of_the_validation_split(rows: str, destination: str) -> None:
    train, validation = convert(rows, destination, validation_fraction=0.2, seed=3)
    assert (train.name, validation.name) == ("train", "validation")
    held_out = _numbers(destination, "validation")
    assert sorted(held_out + _numbers(destination, "train")) == list(range(1000))
    assert len(held_out) == 200
    again, other = storage.join(destination, "again"), storage.join(destination, "other")
    convert(rows, again, validation_fraction=0.2, seed=3)
    convert(rows, other, validation_fraction=0.2, seed=4)
    assert _numbers(again, "validation") == held_out != _numbers(other, "validation")


class Test_a_destination_that_has_this_split:
    def test_is_refused(self, rows: str, destination: str) -> None:
        convert(rows, destination)
        with pytest.raises(InvalidData, match="exists already"):
            convert(rows, destination)
        convert(rows, destination, name="test")
        storage.delete(storage.join(destination, "train-manifest.json"))
        with pytest.raises(InvalidData, match="exists already"):
            convert(rows, destination)

    def test_is_replaced_as_a_whole_when_asked(self, rows: str, destination: str) -> None:
        convert(rows, destination, shard_bytes=1000)
        (made,) = convert(rows, destination, overwrite=True)
        assert sorted(_numbers(destination, "train")) == list(range(1000))
        assert len(made.files) == 1

    def test_stays_when_the_new_source_is_damaged(self, rows: str, destination: str, tmp_path: Path) -> None:
        convert(rows, destination)
        (tmp_path / "bad.csv").write_text("x,label\n1,2\n3,\n")
        with pytest.raises(InvalidData, match="column 'label': 1 row has no label, the first in line 3"):
            convert(str(tmp_path / "bad.csv"), destination, overwrite=True)
        assert sorted(_numbers(destination, "train")) == list(range(1000))


class Killed(BaseException):
    """An exception that no code handles."""


def _convert_until(row: int, rows: str, out: str, **arguments: Any) -> None:
    def kill(done: int, _: int | None) -> None:
        if done == row:
            raise Killed

    with pytest.raises(Killed):
        convert(rows, out, progress=kill, **arguments)


class Test_a_conversion_to_a_bucket:
    ARGUMENTS: ClassVar[dict[str, Any]] = {"shard_bytes": 10_000, "validation_fraction": 0.2}

    @pytest.fixture
    def uploads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The names of the shards that are uploaded."""
        sent: list[str] = []
        upload = storage.upload

        def noted(source: Path | str, uri: str, **named: str | None) -> StoredObject:
            sent.append(uri)
            return upload(source, uri, **named)

        monkeypatch.setattr(storage, "upload", noted)
        return sent

    def test_that_was_killed_resumes_where_it_was(self, rows: str, bucket: str, uploads: list[str]) -> None:
        out = f"{bucket}/out"
        _convert_until(600, rows, out, **self.ARGUMENTS)
        assert storage.glob_or_empty(f"{out}/*") == []
        before = set(uploads)
        uploads.clear()
        train, validation = convert(rows, out, **self.ARGUMENTS)
        assert before
        assert not before & set(uploads), "what was there is not sent again"
        assert len(before) + len(uploads) == len(train.files) + len(validation.files)
        assert sorted(_numbers(out, "train") + _numbers(out, "validation")) == list(range(1000))
        assert [each for each in storage.list_objects(out) if "/.unfinished/" in each.uri] == []

    @pytest.mark.parametrize("after", range(0, 60, 12))
    def test_that_was_killed_while_names_are_given_resumes(
        self, rows: str, bucket: str, uploads: list[str], monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        """Killed after so many changes in the bucket that follow the last upload."""
        out, left = f"{bucket}/out", [after]

        def mortal(change: Callable[..., object]) -> Callable[..., object]:
            def limited(*arguments: object, **named: object) -> object:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return change(*arguments, **named)

            return limited

        with monkeypatch.context() as dying, suppress(Killed):
            for name in ("copy", "delete", "delete_prefix"):
                dying.setattr(storage, name, mortal(getattr(storage, name)))
            dying.setattr(manifest, "save", mortal(manifest.save))
            convert(rows, out, **self.ARGUMENTS)
        uploads.clear()
        # A split that was complete when the process died is refused; that shows the user that nothing is left to do.
        with suppress(InvalidData):
            convert(rows, out, **self.ARGUMENTS)
        assert uploads == []
        assert sorted(_numbers(out, "train") + _numbers(out, "validation")) == list(range(1000))
        for stored in storage.glob(f"{out}/*.tfrecord"):
            assert index_in_sidecar(stored) is not None

    def test_with_other_arguments_starts_again(self, rows: str, bucket: str) -> None:
        out = f"{bucket}/out"
        _convert_until(900, rows, out, **self.ARGUMENTS)
        (made,) = convert(rows, out, shard_bytes=20_000)
        assert sorted(_numbers(out, "train")) == list(range(1000))
        assert len(made.files) == len(storage.glob(f"{out}/train-*.tfrecord"))

    def test_made_again_sends_only_what_changed(self, rows: str, bucket: str, uploads: list[str]) -> None:
        convert(rows, f"{bucket}/out", shard_bytes=10_000)
        uploads.clear()
        convert(rows, f"{bucket}/out", shard_bytes=10_000, overwrite=True)
        assert uploads == []
        assert sorted(_numbers(f"{bucket}/out", "train")) == list(range(1000))

    def test_keeps_few_shards_on_the_local_disk(
        self, rows: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        most = [0]

        def count(done: int, _: int | None) -> None:
            most[0] = max(most[0], len(list(tmp_path.rglob("*.tfrecord.part"))))

        (made,) = convert(rows, f"{bucket}/out", shard_bytes=1_000, progress=count)
        assert len(made.files) > 20
        assert most[0] <= shards.MAX_PENDING_SHARDS + 1

    def test_reports_an_error_of_an_upload(self, rows: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(source: Path | str, uri: str, **_: object) -> None:
            raise InvalidData(uri, "no permission")

        monkeypatch.setattr(storage, "upload", refused)
        with pytest.raises(InvalidData, match="no permission"):
            convert(rows, f"{bucket}/out", shard_bytes=1_000)


def test_sources_in_a_bucket_are_fetched(rows: str, bucket: str, tmp_path: Path) -> None:
    storage.upload(rows, f"{bucket}/rows.npz")
    (made,) = convert(f"{bucket}/rows.npz", str(tmp_path / "out"))
    assert made.records == 1000


@pytest.mark.parametrize(
    ("name", "exists", "message"),
    [
        ("rows", False, "no such file or folder"),
        ("rows.csv", False, "no such file"),
        ("rows.xlsx", True, r"unknown kind of source '\.xlsx'"),
        ("rows.npz", True, r"not a readable \.npz file"),
        ("rows.parquet", True, "unreadable"),
    ],
)
def test_sources_of_other_kinds_are_refused(name: str, exists: bool, message: str, tmp_path: Path) -> None:
    if exists:
        (tmp_path / name).write_bytes(b"something")
    with pytest.raises(InvalidData, match=message) as caught:
        convert(str(tmp_path / name), str(tmp_path / "out"))
    assert "\n" not in str(caught.value)


class Test_preview:
    def test_the_first_records_are_shown_before_anything_is_written(self, rows: str, tmp_path: Path) -> None:
        shown: list[str] = []

        def show(line: str) -> None:
            assert not (tmp_path / "out").exists()
            shown.append(line)

        convert(rows, str(tmp_path / "out"), preview=show)
        assert shown[0] == "1,000 rows; label: label; the first:"
        first = _numbers(str(tmp_path / "out"), "train")[:3]
        assert shown[1:] == [f"  row {number}: label {number % 3}, x {number}" for number in first]

    def test_every_value_is_shown_as_a_person_reads_it(self, tmp_path: Path) -> None:
        pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(1, 4, 5, 3)
        arrays: dict[str, NDArray[Any]] = {
            "image": pixels,
            "mask": np.array([[[0, 1, 5, 5], [0, 0, 1, 5]]], np.uint8),
            "half": np.linspace(0, 1, 12).reshape(1, 12).astype(np.float16),
            "brain": np.arange(12, dtype="<f4").view("V2")[1::2].reshape(1, 12),
            "gap": np.array([[np.nan, *range(8)]], np.float32),
            "box": np.array([[1, 2, 3, 4]], np.int64),
            "name": np.array(["a\nb"]),
        }
        np.savez(tmp_path / "rows.npz", **arrays)
        assert conversion(tmp_path / "rows.npz", tmp_path / "out").preview[1] == (
            "  row 0: box int64 [4] [1, 2, 3, 4], brain bfloat16 [12] 0 to 11, gap float32 [9] 0 to 7 and not finite, "
            "half float16 [12] 0 to 1, image uint8 [4, 5, 3] 0 to 59, mask uint8 [2, 4] {0, 1, 5}, name 'a\\nb'"
        )

    def test_bytes_that_are_no_text_are_counted(self, tmp_path: Path) -> None:
        table = pa.table({"bytes": [bytes(range(256))], "text": ["schön"], "image": [picture("png", (4, 5))]})
        pq.write_table(table, tmp_path / "rows.parquet")
        preview = conversion(tmp_path / "rows.parquet", tmp_path / "out").preview
        assert preview[1] == "  row 0: bytes 256 bytes, image png 4x5x3 uint8 3 to 247, text 'schön'"

    def test_a_dry_run_writes_nothing(self, rows: str, destination: str) -> None:
        assert convert(rows, destination, dry_run=True, validation_fraction=0.2) == []
        assert storage.list_objects(destination) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": "pictures"}, "--images: 'pictures' with the source .*rows.npz; expected a .csv or .parquet file"),
        ({"image_size": (2, 2)}, "--image-size: not possible for this source"),
        ({"missing": "Drop"}, "--missing: 'drop'; expected a"),
        ({"label_as": "Classes"}, "--label-as: 'classes'; expected a .csv or .parquet file"),
        ({"group": "x"}, "--group: 'x'; expected --validation-fraction besides"),
        ({"group": "y", "validation_fraction": 0.5}, "no column 'y' for --group; expected one of 'x', 'label'"),
        ({"columns": ["y"]}, "no column 'y' for --columns"),
        ({"pairs": {"a": "b"}}, "--pairs: a source besides the folders of pairs"),
        ({"path_column": "x"}, "--path-column: 'x' with the source .*rows.npz; expected a .csv or .parquet file"),
        ({"validation_fraction": -0.1}, "--validation-fraction: -0.1; expected 0 or more, less than 1"),
        ({"validation_fraction": 1}, "less than 1"),
        ({"validation_fraction": 1e-9}, "no row for the split 'validation'"),
        ({"validation_fraction": 0.5, "name": "validation"}, "name: 'validation'; expected another name"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    rows: str, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidData, match=message):
        convert(rows, str(tmp_path / "out"), **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("label", "options", "why"),
    [
        # Prices: most of them once.
        (
            100_000 + np.random.default_rng(1).permutation(600) * 1_000,
            {},
            "without regard to 'label': 100000 has 1 row, a share of 0.2 needs 5 of each value",
        ),
        # Ages: two years or so of each; rounding to whole rows of each took 27 of them.
        (
            np.append(np.random.default_rng(2).integers(18, 94, 149), 95),
            {},
            "without regard to 'label': 19 has 1 row, a share of 0.2 needs 5 of each value",
        ),
        (np.arange(100) % 3, {"label_as": "Numbers"}, "without regard to 'label': it is stored as numbers"),
        (np.arange(100) % 3, {}, "the same share of each 'label'"),
    ],
)
def test_a_regression_target_is_not_divided_by_its_values(
    tmp_path: Path, label: NDArray[np.int64], options: dict[str, Any], why: str
) -> None:
    source, count = tmp_path / "rows.csv", len(label)
    source.write_text("x,label\n" + "".join(f"{row},{value}\n" for row, value in enumerate(label)))
    converted = conversion(source, tmp_path / "out", validation_fraction=0.2, **options)
    assert converted.notices == [f"validation: {count // 5} of {count} rows, {why}"]
    assert [split.records for split in converted.splits] == [count - count // 5, count // 5]
