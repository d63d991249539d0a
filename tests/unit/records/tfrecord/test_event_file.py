"""Event files, read by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_api.outputs.scalars import Restart, Scalar
from mptraining_records.tfrecord.event_file import EventFiles
from mptraining_storage import storage


def scalar(step: int, value: float, tag: str = "loss", run: str = "train") -> Scalar:
    return Scalar(run, tag, step, 1_700_000_000.0 + step, value)  # type: ignore[arg-type]


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return step, value and time by tag, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        tag: [(each.step, each.value, each.wall_time) for each in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    files = EventFiles(str(tmp_path), "1-a", 1_700_000_000.5)
    files.add([scalar(1, 0.5), scalar(1, 0.25, "training/learning_rate"), scalar(1, 0.75, run="validation")])
    files.flush()
    files.add([scalar(300, -1e-3), scalar(2**40, 1e300)])
    files.flush()
    train = read(tmp_path / "train")
    assert train["training/learning_rate"] == [(1, 0.25, 1_700_000_001.0)]
    assert [step for step, _, _ in train["loss"]] == [1, 300, 2**40]
    assert [value for _, value, _ in train["loss"]] == pytest.approx([0.5, -1e-3, 3.4e38])
    assert read(tmp_path / "validation") == {"loss": [(1, 0.75, 1_700_000_001.0)]}


def test_steps_that_are_trained_again_have_one_point(tmp_path: Path) -> None:
    """After a rollback in one file, and after a new attempt, which has a file of its own."""
    first = EventFiles(str(tmp_path), "1-a", 1_700_000_000)
    first.add([Restart(0, 1.0), *(scalar(step, 0.1) for step in (1, 2, 3, 4))])
    first.add([Restart(2, 2.0), *(scalar(step, 0.2) for step in (3, 4, 5, 6))])
    first.add([scalar(6, 0.2, run="validation")])
    first.flush()
    second = EventFiles(str(tmp_path), "2-b", 1_700_000_100)
    second.add([Restart(4, 3.0), *(scalar(step, 0.3) for step in (5, 6, 7))])
    second.flush()
    points = [(step, round(value, 1)) for step, value, _ in read(tmp_path / "train")["loss"]]
    assert points == [(1, 0.1), (2, 0.1), (3, 0.2), (4, 0.2), (5, 0.3), (6, 0.3), (7, 0.3)]
    assert read(tmp_path / "validation").get("loss", []) == [], "its step is trained again"


def test_a_file_that_a_user_deletes_is_written_again(tmp_path: Path) -> None:
    files = EventFiles(str(tmp_path), "1-a", 1_700_000_000)
    files.add([scalar(1, 0.5)])
    files.flush()
    for file in (tmp_path / "train").iterdir():
        file.unlink()
    files.add([scalar(2, 0.25)])
    files.flush()
    (written,) = (tmp_path / "train").iterdir()
    assert not written.read_bytes().startswith(bytes(8)), "zeros in the place of what was deleted"
    assert [step for step, _, _ in read(tmp_path / "train")["loss"]] == [1, 2]


def write(folder: str, last: int) -> None:
    """Write so many steps one after the other."""
    files = EventFiles(folder, "1-a", 1_700_000_000)
    for step in range(1, last + 1):
        files.add([scalar(step, 0.5)])
        files.flush()


def test_a_bucket_gets_whole_files(bucket: str, tmp_path: Path) -> None:
    write(f"{bucket}/run/tensorboard", 3)
    (stored,) = storage.list_objects(f"{bucket}/run/tensorboard")
    assert stored.uri == f"{bucket}/run/tensorboard/train/events.out.tfevents.1700000000.1-a.00000"
    storage.download(stored.uri, tmp_path / stored.uri.rpartition("/")[2])
    assert [step for step, _, _ in read(tmp_path)["loss"]] == [1, 2, 3]


def test_a_long_run_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptraining_records.tfrecord.event_file.PART_BYTES", 500)
    write(str(tmp_path), 30)
    assert len(list((tmp_path / "train").iterdir())) > 1
    assert [step for step, _, _ in read(tmp_path / "train")["loss"]] == list(range(1, 31))
