"""A checkpoint's array files, its record of code, versions, hardware and job, and what changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from safetensors.numpy import save

from mptraining_trainer.checkpoints import files
from mptraining_trainer.checkpoints.provenance import Origin, changes, code_digest, origin
from tests.jobs import resolved_job

_TWO_ROWS = {"0 [rows from 000000000000]": np.zeros((1, 2)), "0 [rows from 000000000001]": np.zeros((1, 3))}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "model.safetensors is damaged: .*header too small", id="empty"),
        pytest.param(b"\xff" * 20, "model.safetensors is damaged: .*header", id="no-header"),
        pytest.param(save({"0": np.zeros(4)})[:-1], "model.safetensors is damaged: ", id="cut-off"),
        pytest.param(save(_TWO_ROWS), "model.safetensors: parts that do not fit together", id="parts-of-two-arrays"),
    ],
)
def test_a_file_that_is_no_array_file_is_damaged(tmp_path: Path, content: bytes, why: str) -> None:
    """Found by fuzzing: safetensors' own error is no ValueError, which ended the attempt."""
    (tmp_path / "model.safetensors").write_bytes(content)
    known = files.FileState(bytes=len(content), crc32c=google_crc32c.value(content))
    with pytest.raises(ValueError, match=why):
        files.read(str(tmp_path), {"model.safetensors": known})


JOB: dict[str, Any] = {"training": {"epochs": 2, "batchSize": {"global": 32}}, "output": {"uri": "/runs/a"}}


def origin_of(**changed: Any) -> Origin:
    sections = {name: {**JOB.get(name, {}), **section} for name, section in changed.items()}
    return origin(resolved_job(**JOB | sections), None, versions={"tensorflow": "2.21.0"})


@pytest.mark.parametrize(
    ("section", "difference"),
    [
        ({"training": {"batchSize": {"global": 64}}}, "globalBatchSize: 32, now 64"),
        ({"training": {"seed": 9}}, "training.seed: 0, now 9"),
        ({"precision": {"policy": "mixed_bfloat16"}}, "precision.policy: float32, now mixed_bfloat16"),
        ({"accelerator": {"type": "cpu", "countPerWorker": 2}}, "replicas: 1, now 2"),
        # These change no number.
        ({"training": {"epochs": 20, "stepsPerExecution": 4}}, None),
        ({"output": {"uri": "/runs/b"}}, None),
    ],
)
def test_a_change_of_the_job_is_named_with_both_values(section: dict[str, Any], difference: str | None) -> None:
    differences = changes(origin_of(), origin_of(**section))
    assert difference in differences if difference else differences == []


def test_versions_hardware_and_code_are_compared() -> None:
    before = Origin.read(origin_of().to_json())
    now = before.model_copy(
        update={"code": "b", "versions": before.versions | {"tensorflow": "2.22.0"}, "hardware": {"processor": "x"}}
    )
    differences = changes(before, now)
    assert differences[0] == "the program's code: another one"
    assert {"tensorflow: 2.21.0, now 2.22.0", "accelerator: cpu, now nothing"} <= {*differences}
    assert changes(before, before) == []


def test_code_is_what_the_python_files_say(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "train.py").write_text("a = 1")
    (tmp_path / "package" / "model.py").write_text("b = 2")
    first = code_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("no code")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text("not ours")
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "gone")
    assert code_digest(tmp_path) == first
    (tmp_path / "package" / "model.py").write_text("b = 3")
    second = code_digest(tmp_path)
    assert second != first
    (tmp_path / "package" / "model.py").rename(tmp_path / "package" / "moved.py")
    assert code_digest(tmp_path) != second
