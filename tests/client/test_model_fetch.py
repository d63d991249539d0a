"""The model's files from a run folder; those from a pod stand in tests/cluster/test_mptj.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining import model_fetch
from mptraining_api.problems import InvalidData
from mptraining_records import storage


@pytest.fixture
def output(bucket: str) -> str:
    for name in ("model.json", "weights.npz", "source/flowers.py"):
        storage.write(f"{bucket}/run/model/{name}", name.encode())
    return f"{bucket}/run"


def test_from_a_bucket_whole_or_not_at_all(output: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    got = model_fetch.from_run_folder(output, tmp_path / "model")
    assert sorted(path.relative_to(got).as_posix() for path in got.rglob("*") if path.is_file()) == [
        "model.json",
        "source/flowers.py",
        "weights.npz",
    ]
    assert (got / "source" / "flowers.py").read_text() == "source/flowers.py"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_from_a_volume_that_is_mounted_here(tmp_path: Path) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "model.json").write_text("{}")
    got = model_fetch.from_run_folder(str(tmp_path / "run"), tmp_path / "copy")
    assert (got / "model.json").read_text() == "{}"


def test_a_folder_of_the_pods_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"is a folder of the job's pods and not of this machine"):
        model_fetch.from_run_folder("/runs/of-the-pods", tmp_path / "model")
    with pytest.raises(InvalidData, match="holds no model"):
        model_fetch.from_run_folder(str(tmp_path), tmp_path / "model")
