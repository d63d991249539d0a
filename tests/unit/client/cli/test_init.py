"""`mptj init`, `mptj schema`, `mptj accelerators`, help and completion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mptraining.cli import accelerators
from mptraining.cli.main import app
from mptraining.cli.shell.kubectl_completion import FILES, NO_FILES, candidates
from mptraining.job_file.checked_job import check_job_file
from mptraining_api.accelerators import catalogue
from mptraining_api.problems import InvalidSpec

RUNNER = CliRunner()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "train-0.tfrecord").touch()
    (tmp_path / "train.py").write_text("print('trains')\n")
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "model.py").write_text("def build(): ...\n")
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--program", "resnet50", "--accelerator", "t4", "--classes", "5", "--run-folder", "gs://b/runs"],
        ["--program", "train.py", "--accelerator", "v100"],
        ["--program", "flowers.model:build", "--label", "label", "--epochs", "3", "--batch-size", "32"],
    ],
)
def test_what_init_writes_passes_check(here: Path, flags: list[str]) -> None:
    done = RUNNER.invoke(app, ["init", "job.yaml", *flags])
    assert done.exit_code == 0, done.output
    checked = check_job_file(here / "job.yaml")
    assert checked.written.metadata.name == "job"
    text = (here / "job.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=mptrainingjob.schema.json\n")
    schema = json.loads((here / "mptrainingjob.schema.json").read_text())
    assert schema == json.loads(RUNNER.invoke(app, ["schema"]).output)


def test_init_names_what_is_still_missing(here: Path) -> None:
    assert "still missing" not in RUNNER.invoke(app, ["init", "one.yaml"]).output
    done = RUNNER.invoke(app, ["init", "two.yaml", "--data", "nowhere/*"])
    assert "still missing: spec.data.train[0]: 'nowhere/*'" in done.output
    assert here.joinpath("two.yaml").exists()
    done = RUNNER.invoke(app, ["init", "three.yaml", "--program", "flower.model:build"])
    assert "still missing: spec.program.function.entryPoint: no module 'flower'" in done.stdout
    done = RUNNER.invoke(app, ["init", "--program", "VGG99"])
    assert "there is no application 'VGG99'. Did you mean 'VGG19'?" in str(done.exception)


def test_init_without_a_terminal_names_what_it_assumed(here: Path) -> None:
    done = RUNNER.invoke(app, ["init", "one.yaml", "--accelerator", "t4"])
    assert done.stderr == (
        "note: no terminal to ask at; assumed: --program mlp --data 'records/train-*.tfrecord' "
        "--classes 10. Edit one.yaml, or give other values with these options and --overwrite\n"
    )
    given = ["--program", "mlp", "--accelerator", "cpu", "--data", "records/train-*", "--classes", "3"]
    assert RUNNER.invoke(app, ["init", "two.yaml", *given]).stderr == ""


def test_init_replaces_nothing_by_itself(here: Path) -> None:
    (here / "job.yaml").write_text("mine")
    done = RUNNER.invoke(app, ["init"])
    assert isinstance(done.exception, InvalidSpec)
    assert (here / "job.yaml").read_text() == "mine"
    assert RUNNER.invoke(app, ["init", "--overwrite"]).exit_code == 0


def test_accelerators_lists_the_whole_catalogue() -> None:
    done = RUNNER.invoke(app, ["accelerators"])
    assert len(done.output.splitlines()) == len(catalogue()) + 1
    rows = {row["name"]: row for row in accelerators.rows()}
    assert rows["t4"] == {
        "name": "t4", "also": ["nvidia-tesla-t4"], "kind": "gpu", "memoryGiB": 16, "autoPolicy": "mixed_float16",
        "policies": ["float32", "mixed_float16"], "perWorker": [1, 2, 4], "what": "NVIDIA T4",
        "nodeLabels": ["GKE", "EKS", "AKS", "NVIDIA"], "slices": [],
    }  # fmt: skip


def test_values_are_completed_with_blanks_intact(here: Path) -> None:
    (here / "runs" / "one").mkdir(parents=True)
    for place in (here / "runs" / "one", here / "flowers"):
        (place / "job.json").touch()
    (here / "a job.yaml").touch()
    words = {
        ("submit", "--accelerator", "tril"): ["trillium"],
        ("run", "--precision", "mixed_b"): ["mixed_bfloat16"],
        ("submit", "resnet50"): ["ResNet50", "ResNet50V2"],
        ("compare", ""): ["./flowers", "runs/one"],
        ("compare", "flo"): ["./flowers"],
        ("compare", "./fl"): ["./flowers"],
        ("check", "a"): ["a job.yaml"],
        ("track", "x", "--to", "m"): ["mlflow"],
        ("sweep", "st"): ["status"],
    }
    assert {typed: candidates(typed) for typed in words} == {typed: (names, NO_FILES) for typed, names in words.items()}
    assert candidates(["fetch", "x", "--to", ""]) == ([], FILES)
