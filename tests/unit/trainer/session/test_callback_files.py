"""The files of callbacks, the continuation of a CSV file after a restart, and a callback's declared state."""

from __future__ import annotations

import csv
import io
import json
import math
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidProgram, StorageUnavailable, Superseded
from mptraining_storage import storage
from mptraining_storage.outbox import Outbox
from mptraining_trainer.session.callback_files import CallbackFiles, rows_of_first_epochs, split_path
from mptraining_trainer.session.keras_callbacks import pack_state, state_methods, unpack_state
from tests.fakes import Notices


@pytest.mark.parametrize(
    ("path", "folder", "below"),
    [
        ("log.csv", None, "log.csv"),
        ("./logs/../log.csv", None, "log.csv"),
        ("checkpoints/{epoch:02d}/{val_loss:.2f}.keras", None, "checkpoints/{epoch:02d}/{val_loss:.2f}.keras"),
        ("/mnt/volume/log.csv", "/mnt/volume", "log.csv"),
        ("/mnt/{epoch}/model.keras", "/mnt", "{epoch}/model.keras"),
        ("gs://bucket/models/{epoch}.keras", "gs://bucket/models", "{epoch}.keras"),
        ("gs://bucket/model.keras", "gs://bucket", "model.keras"),
        ("gs://bucket/{epoch}/a.keras", "gs://bucket", "{epoch}/a.keras"),
    ],
)
def test_a_path_is_split_where_it_is_whole(path: str, folder: str | None, below: str) -> None:
    assert split_path(path) == (folder, below)


@given(
    st.lists(st.lists(st.text("ab,;\"'\n. 0"), min_size=2, max_size=2), max_size=6),
    st.integers(0, 7),
    st.sampled_from([",", ";"]),
)
def test_the_rows_of_the_epochs_that_are_done_are_kept(rows: list[list[str]], epochs: int, separator: str) -> None:
    def written(count: int) -> str:
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=separator)
        writer.writerow(["epoch", "loss", "accuracy"])
        writer.writerows([epoch, *row] for epoch, row in enumerate(rows[:count]))
        return text.getvalue()

    assert rows_of_first_epochs(written(len(rows)), separator, epochs) == written(min(epochs, len(rows)))


CSVLogger, ModelCheckpoint, TensorBoard = (
    type(name, (SimpleNamespace,), {"__module__": "keras.callbacks"})
    for name in ("CSVLogger", "ModelCheckpoint", "TensorBoard")
)


@pytest.fixture
def notices() -> Notices:
    return Notices()


def files(tmp_path: Path, notices: Notices, *, chief: bool = True) -> CallbackFiles:
    (tmp_path / "scratch").mkdir()
    return CallbackFiles(str(tmp_path / "run"), tmp_path / "scratch", chief=chief, notice=notices, outbox=Outbox())


def write(path: str, content: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content)


def published(tmp_path: Path) -> dict[str, str]:
    found = tmp_path / "run"
    return {path.relative_to(found).as_posix(): path.read_text() for path in found.rglob("*") if path.is_file()}


def test_files_go_to_the_run_folder_and_where_a_whole_path_says(tmp_path: Path, notices: Notices) -> None:
    log, model = CSVLogger(filename="log.csv"), ModelCheckpoint(filepath="models/{epoch}.keras")
    boards = [TensorBoard(log_dir="logs/fit/20260101"), TensorBoard(log_dir=str(tmp_path / "elsewhere"))]
    keeping = files(tmp_path, notices)
    keeping.redirect([log, model, *boards])
    write(log.filename, "epoch")
    write(model.filepath.format(epoch=1), "first")
    for board in boards:
        write(f"{board.log_dir}/train/events", "events")
    keeping.publish()
    keeping.wait()
    expected = {"callbacks/log.csv": "epoch", "callbacks/models/1.keras": "first", "tensorboard/train/events": "events"}
    assert published(tmp_path) == expected
    assert (tmp_path / "elsewhere" / "train" / "events").read_text() == "events"
    write(log.filename, "epoch,loss")
    keeping.publish()
    keeping.wait()
    assert published(tmp_path)["callbacks/log.csv"] == "epoch,loss"


def logged(tmp_path: Path, notices: Notices, *, chief: bool = True) -> tuple[Any, CallbackFiles]:
    log, keeping = CSVLogger(filename="log.csv"), files(tmp_path, notices, chief=chief)
    keeping.redirect([log])
    return log, keeping


def test_what_is_unchanged_is_not_sent_again(tmp_path: Path, notices: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(storage, "upload", lambda path, uri: sent.append(uri))
    log, keeping = logged(tmp_path, notices)
    for content in ("a", None, "bc"):
        if content:
            write(log.filename, content)
        keeping.publish()
        # A file does not change while it is published.
        keeping.wait()
    assert len(sent) == 2


def test_storage_that_does_not_respond_ends_no_training(
    tmp_path: Path, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [False, True]

    def upload(path: Path, uri: str) -> None:
        if not answers.pop(0):
            raise StorageUnavailable(uri, "no answer")

    monkeypatch.setattr(storage, "upload", upload)
    log, keeping = logged(tmp_path, notices)
    write(log.filename, "epoch")
    keeping.publish()
    while answers:
        threading.Event().wait(0.02)
    keeping.wait()
    (notice,) = notices
    assert notice.startswith("Warning CallbackFileNotPublished: ")


@pytest.mark.parametrize("chief", [False, True], ids=["another worker", "a superseded attempt"])
def test_who_does_not_own_the_run_folder_publishes_nothing(tmp_path: Path, notices: Notices, chief: bool) -> None:
    def superseded() -> None:
        raise Superseded("fence.json", "attempt 2 has it")

    log, keeping = logged(tmp_path, notices, chief=chief)
    keeping.check_fence = superseded
    write(log.filename, "epoch")
    keeping.publish()
    with pytest.raises(Superseded) if chief else nullcontext():
        keeping.wait()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("epochs", "append", "content"),
    [(1, False, "epoch,loss\r\n0,3.5\r\n"), (None, True, "epoch,loss\r\n0,3.5\r\n1,2.5\r\n"), (None, False, None)],
)
def test_a_logger_continues_its_file(
    tmp_path: Path, notices: Notices, epochs: int | None, append: bool, content: str | None
) -> None:
    (tmp_path / "run" / "callbacks").mkdir(parents=True)
    (tmp_path / "run" / "callbacks" / "log.csv").write_bytes(b"epoch,loss\r\n0,3.5\r\n1,2.5\r\n")
    log = CSVLogger(filename="log.csv", sep=",", append=append)
    keeping = files(tmp_path, notices)
    keeping.redirect([log])
    keeping.restore_csv_log(log, epochs)
    there = Path(log.filename)
    assert (there.read_bytes().decode() if there.exists() else None) == content
    assert log.append == (content is not None)


def test_a_path_outside_is_named_with_its_callback(tmp_path: Path, notices: Notices) -> None:
    with pytest.raises(InvalidProgram, match=r"callbacks\[1\]: CSVLogger: '../log.csv' leads out of the run folder"):
        files(tmp_path, notices).redirect([TensorBoard(log_dir="logs"), CSVLogger(filename="../log.csv")])


leaves = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text()
states = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda k: k[:1] != "$"), inner)
)


@given(states)
def test_json_values_come_back_as_they_were(state: Any) -> None:
    value, arrays = pack_state(state)
    assert arrays == []
    assert unpack_state(json.loads(json.dumps(value, allow_nan=False)), arrays) == state


def test_arrays_tensors_and_nan_come_back() -> None:
    state = {
        "a": [np.float16([1, 2]), {"b": np.int64(3)}],
        "c": tf.constant([[1.5]]),
        "d": (1, math.nan),
        "e": np.bool_(True),
    }
    value, arrays = pack_state(state)
    back = unpack_state(json.loads(json.dumps(value, allow_nan=False)), arrays)
    assert (back["a"][0].dtype, back["a"][0].tolist()) == (np.float16, [1, 2])
    assert (back["a"][1]["b"], back["c"].tolist(), back["e"]) == (3, [[1.5]], True)
    assert back["d"][0] == 1
    assert math.isnan(back["d"][1])


@pytest.mark.parametrize(
    ("state", "place"),
    [({"a": [1, object()]}, "state['a'][1] is of object"), ({1: 2}, "state has the key 1"), ({"$array": 0}, "$array")],
)
def test_anything_else_is_named(state: Any, place: str) -> None:
    with pytest.raises(TypeError) as raised:
        pack_state(state)
    assert place in str(raised.value)


def test_which_methods_declare_it() -> None:
    class Lightning:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    assert state_methods(Lightning()) == ("state_dict", "load_state_dict")
    assert state_methods(object()) is None
