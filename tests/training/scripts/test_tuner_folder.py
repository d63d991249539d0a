"""The state of KerasTuner's tuners with a run folder in a bucket."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mptraining_storage import storage
from mptraining_trainer.scripts.tuner_folder import STEPS_FILE, TunerFolder, write_json


@pytest.fixture
def exit_stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def write(folder: TunerFolder, name: str, text: str) -> None:
    path = folder.local / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_local_copy_of_a_bucket_is_deleted_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as stack:
        folder = TunerFolder("gs://bucket/run", stack)
        folder.write_steps(12)
        assert folder.local.is_relative_to(tmp_path)
        assert folder.read_steps() == 12
    assert not list(tmp_path.iterdir())


def test_the_next_attempt_finds_what_one_has_uploaded(bucket: str, exit_stack: ExitStack) -> None:
    run = f"{bucket}/run"
    first, second = TunerFolder(run, exit_stack), TunerFolder(run, exit_stack)
    write(first, "search/p/trial_0/checkpoint.weights.h5", "weights")
    write(first, "search/p/oracle.json", "1")
    write(first, "search/p/oracle.json.part", "half")
    first.write_steps(12)
    first.upload()
    second.download(only=STEPS_FILE)
    assert second.read_steps() == 12
    assert [path.name for path in second.local.rglob("*")] == [STEPS_FILE]
    second.download()
    names = {path.relative_to(second.local).as_posix() for path in second.local.rglob("*") if path.is_file()}
    assert names == {STEPS_FILE, "search/p/trial_0/checkpoint.weights.h5", "search/p/oracle.json"}
    # Only changes travel, in both directions.
    before = {stored.uri: stored.version for stored in storage.list_objects(f"{run}/tuner")}
    write(first, "search/p/oracle.json", "22")
    first.upload()
    second.upload()
    after = {stored.uri: stored.version for stored in storage.list_objects(f"{run}/tuner")}
    assert {uri for uri in after if after[uri] != before[uri]} == {f"{run}/tuner/search/p/oracle.json"}
    second.download()
    assert (second.local / "search/p/oracle.json").read_text() == "22"


def test_a_file_is_whole_or_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "oracle.json"
    assert write_json(str(path), {"trials": 1}) == '{"trials": 1}'
    with pytest.raises(TypeError):
        write_json(str(path), {"trials": object()})
    assert json.loads(path.read_text()) == {"trials": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["oracle.json"]
