"""Jobs that can never work: one line with field, value, expectation and next step; exit code 2; no model."""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mptraining_api.launch import SECRET_VARIABLES
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.example import encode
from tests.training.runs import Run, start

MODELS = """
import keras

def layers(units):
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(units)])

def good():
    return layers(3)

def wide():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(5), keras.layers.Dense(3)])

def nothing():
    return None

def raises():
    raise KeyError("no such layer")

def wrong_size():
    return keras.Sequential([keras.layers.Input((7,)), keras.layers.Dense(3)])

def fixed_size():
    return keras.Sequential([keras.layers.Input((2,), batch_size=8), keras.layers.Dense(3)])

def bad_preprocess(inputs):
    return inputs

def failing_preprocess(inputs, labels):
    raise ValueError("cannot rotate")
"""


Attempt = Callable[..., Run]


def records(*rows: dict[str, Any]) -> bytes:
    return b"".join(framing.encode(encode(row)) for row in rows)


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"x": [1.0 * number, 2.0], "label": number % 3} | more for number in range(count)]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Runs a function program over 64 small records by default."""
    (tmp_path / "bad_models.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("import keras\nkeras.no_such_thing\n")
    (tmp_path / "data.tfrecord").write_bytes(records(*rows(64)))
    monkeypatch.syspath_prepend(tmp_path)
    attempts = iter(range(1, 10))

    def run_one(
        function: str = "bad_models:good", *, environment: dict[str, str] | None = None, **sections: Any
    ) -> Run:
        spec = {
            "strategy": "None",
            "program": {"function": {"entryPoint": function}},
            "data": {"train": [f"{tmp_path}/data.tfrecord"]} | sections.pop("data", {}),
            "training": {"batchSize": {"global": 8}, "epochs": 1, "seed": 7} | sections.pop("training", {}),
        } | sections
        return start(spec, tmp_path / "run", name="small", attempt=next(attempts), environment=environment)

    return run_one


def test_the_small_job_works_until_something_is_wrong(attempt: Attempt) -> None:
    fine = attempt()
    assert fine.outcome.exit_code == 0
    assert Path(fine.folder, "model", "model.json").exists()


def image(height: int, width: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


PICTURES = [{"image": image(4, 4 + number % 2), "label": 0} for number in range(16)]
TYPED = [{"name": "x", "dtype": "float32", "shape": [2]}, {"name": "label", "dtype": "int64"}]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "no_module:build",
            r"^spec\.program\.function\.entryPoint: no module 'no_module' .*(Put the code there|Did you)",
        ),
        ("bad_models:god", r"entryPoint: module 'bad_models' has no 'god'\. Did you mean 'good'\?"),
        ("broken:build", r"entryPoint: importing broken raised AttributeError: .*no_such_thing.*broken\.py:2"),
        ("bad_models:nothing", r"entryPoint: bad_models:nothing returned NoneType; expected a keras\.Model"),
        ("bad_models:raises", r"entryPoint: bad_models:raises raised KeyError: 'no such layer' \(at .*bad_models.py"),
        (
            "bad_models:wrong_size",
            r"spec\.data\.features: .*'x' has shape \[2\]; expected \[7\].*Input to shape \[2\]\. .* raised",
        ),
    ],
)
def test_a_program_that_is_none(
    attempt: Attempt, capfd: pytest.CaptureFixture[str], function: str, message: str
) -> None:
    expect(attempt(function), message, capfd)


def test_a_fixed_batch_size_works_with_batches_of_this_size(attempt: Attempt) -> None:
    assert attempt("bad_models:fixed_size").outcome.exit_code == 0


@pytest.mark.parametrize("training", [{"batchSize": {"global": 16}}, {"gradientAccumulationSteps": 2}])
def test_a_fixed_batch_size_that_batches_do_not_have(
    attempt: Attempt, capfd: pytest.CaptureFixture[str], training: dict[str, Any]
) -> None:
    message = r"^spec\.program: .*Input fixes the batch size 8, .* batch here has 16 examples in \d parts.*global: 8"
    expect(attempt("bad_models:fixed_size", training=training), message, capfd)


def test_an_error_with_a_secret_does_not_print_it(attempt: Attempt, capfd: pytest.CaptureFixture[str]) -> None:
    secret = {"TOKEN": "no such layer", SECRET_VARIABLES: "TOKEN"}
    found = attempt("bad_models:raises", environment=secret)
    expect(found, r"bad_models:raises raised KeyError: '\(the value of TOKEN\)' \(at .*bad_models\.py", capfd)
    assert all("no such layer" not in event.to_json() for event in found.events)


def expect(found: Run, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert found.outcome.exit_code == 2, found.message
    assert re.search(message, found.message), found.message
    assert "\n" not in found.message
    assert "Traceback" not in capfd.readouterr().err
    assert not Path(found.folder, "model").exists()
    assert not list(Path(found.folder, "checkpoints").glob("step-*"))
    assert not Path(found.folder, "result.json").exists()


@pytest.mark.parametrize(
    ("content", "data", "message"),
    [
        (None, {"train": ["{}/no-*.tfrecord"]}, r"no-\*\.tfrecord: (no|matches)"),
        (None, {"train": ["{}/absent.tfrecord"]}, r"absent\.tfrecord: "),
        (b"id,label\n1,2\n" * 20, {}, r"data\.tfrecord: .*(CSV|no TFRecord|not a TFRecord|is damaged)"),
        (b"", {}, r"zero steps|no record"),
        (records(*PICTURES), {}, r"^spec.data.train: feature 'image': mixed shapes .*resize: \[height, width\]"),
        (records(*rows(64)), {"label": "labl"}, r"data\.label: no feature 'labl'.*Did you mean 'label'"),
        (records(*({"x": [1.0, 2.0]} for _ in range(16))), {}, r"spec\.data\.label: missing; expected one of \['x'\]"),
        (records(*rows(3)), {}, r"spec\.training\.batchSize: 8 examples a step, 3 .*zero steps\. .*PadAndMask"),
        (
            records({"label": 1}, *rows(20)),
            {"features": TYPED},
            r"^spec.data.train: .*data\.tfrecord: record 0 at byte 0: feature 'x' is missing\. The record has",
        ),
        (records(*rows(20, label=7)), {}, r"spec\.data\.label: labels from 7 to 7 .*expected 0 to 2\. Give the head"),
        (
            records(*rows(63), *rows(1, label=12)),
            {"shuffle": {"bufferSize": 0}},
            r"spec\.data\.label: Received a label value of 12 .*\[0, 3\)\. Give the head",
        ),
        (records(*rows(20, x=[float("nan"), 1.0])), {}, "record 0 .*'x' cannot be decoded: a value that is infinite"),
        (
            records(*rows(63), *rows(1, x=[1.0])),
            {"features": TYPED},
            r"data\.tfrecord: record 63 at byte \d+ is damaged: feature 'x' has 1 values; expected 2 .*records verify`",
        ),
        (
            records(*rows(63), *rows(1, x=[1.0])),
            {"features": TYPED, "cache": "None", "shuffle": {"bufferSize": 0}},
            r"data\.tfrecord: record 63 at byte \d+ is damaged: feature 'x' has 1 values; expected 2 .*records verify`",
        ),
        (
            records(*({"x": bytes(16), "label": 0} for _ in range(16))),
            {"features": [{"name": "x", "dtype": "float16", "shape": [4], "decode": "raw"}, TYPED[1]]},
            r"^spec.data.train: .*record 0 at byte 0: feature 'x' has 16 bytes; expected 8 bytes .*\. Correct",
        ),
        (None, {"preprocess": "bad_models:bad_preprocess"}, r"spec\.data\.preprocess: bad_preprocess\(inputs\)"),
        (None, {"preprocess": "bad_models:failing_preprocess"}, r"spec\.data\.preprocess: .*cannot rotate"),
        (None, {"preprocess": "bad_models:bat_preprocess"}, r"spec\.data\.preprocess: .*Did you mean 'bad_pre"),
        (None, {"preprocess": "broken:map"}, r"spec\.data\.preprocess: importing broken raised"),
    ],
    ids=[
        "empty glob", "absent file", "no TFRecord", "empty file", "mixed shapes", "misspelt label", "no label",
        "zero steps", "missing feature", "label out of range", "one later label out of range", "NaN", "one odd record",
        "one odd record of a stream", "raw of another shape",
        "preprocess takes one", "preprocess fails", "preprocess misspelt", "preprocess cannot be imported",
    ],
)  # fmt: skip
def test_data_that_cannot_be_trained_on(
    attempt: Attempt,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    content: bytes | None,
    data: dict[str, Any],
    message: str,
) -> None:
    if content is not None:
        (tmp_path / "data.tfrecord").write_bytes(content)
    data = {name: [value[0].format(tmp_path)] if name == "train" else value for name, value in data.items()}
    expect(attempt(data=data), message, capfd)


@pytest.mark.parametrize("cache", ["Memory", "None"])
def test_a_damaged_record_in_mid_training(
    attempt: Attempt, tmp_path: Path, capfd: pytest.CaptureFixture[str], cache: str
) -> None:
    content = bytearray((tmp_path / "data.tfrecord").read_bytes())
    content[-10] ^= 0xFF
    (tmp_path / "data.tfrecord").write_bytes(content)
    found = attempt(data={"cache": cache, "shuffle": {"bufferSize": 0}})
    assert (found.outcome.exit_code, Path(found.folder, "model").exists()) == (2, False)
    assert re.search(r"data\.tfrecord: record 63 at byte .*badRecords\.action: Skip", found.message)
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_folder_of_another_job(attempt: Attempt, capfd: pytest.CaptureFixture[str]) -> None:
    first = attempt()
    before = {path: path.stat().st_mtime_ns for path in Path(first.folder).rglob("*")}
    other = attempt("bad_models:wide")
    assert other.outcome.exit_code == 2
    printed = capfd.readouterr()
    assert "the run folder of another job: spec.program is another one. Give another output folder" in printed.out
    assert "Traceback" not in printed.err
    assert {path: path.stat().st_mtime_ns for path in Path(first.folder).rglob("*")} == before, (
        "nothing of it is touched"
    )


def test_a_bucket_that_never_answers(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The user's mistake in the first attempt; in a later one the service may recover."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
        first = attempt(data={"train": ["gs://bucket/data.tfrecord"]})
        assert (first.outcome.exit_code, first.finished.reason) == (2, "InvalidData")
        assert re.search(
            r"^spec\.data\.train: gs://bucket/data\.tfrecord: the bucket cannot be reached \(Connection refused\)\. It",
            first.message,
        )
        later = attempt(data={"train": ["gs://bucket/data.tfrecord"]})
        assert (later.outcome.exit_code, later.finished.reason) == (75, "StorageUnavailable")
    assert "Traceback" not in capfd.readouterr().err


def test_a_bucket_that_does_not_exist(attempt: Attempt, bucket: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = attempt(data={"train": ["gs://nowhere/data.tfrecord"]})
    expect(
        found, r"^spec\.data\.train: gs://nowhere/data\.tfrecord: there is no bucket 'nowhere'\. Check the name", capfd
    )


def test_a_job_that_was_refused_may_be_corrected_in_the_same_folder(attempt: Attempt) -> None:
    assert attempt("bad_models:raises").outcome.exit_code == 2
    assert attempt("bad_models:good").outcome.exit_code == 0


def test_a_promised_gpu_that_is_not_there(attempt: Attempt, capfd: pytest.CaptureFixture[str]) -> None:
    found = attempt(accelerator={"type": "t4", "countPerWorker": 1})
    expect(found, r"spec\.accelerator: promised 1 x t4 and sees 0 GPUs\. .*cpuFallback", capfd)
