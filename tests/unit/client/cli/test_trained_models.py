"""`mptj predict` and `mptj ensemble`: their jobs, what they print, and the files that they leave; no TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining.cli.main import main
from mptraining.local import run as local_run
from mptraining_api import run_folder
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from tests.unit.client.test_ensemble_job import run as run_of


class FakeRun:
    """Takes the place of a local run: keeps the job, and writes what the trainer would."""

    def __init__(self, code: int = 0, **metrics: float) -> None:
        self.code = code
        self.metrics = metrics
        self.jobs: list[MPTrainingJob] = []

    def __call__(self, path: Path, *, document: dict[str, Any], **_: Any) -> int:
        job = MPTrainingJob.parse(document)
        self.jobs.append(job)
        result = run_of("p", **self.metrics).result
        folder = Path(job.spec.output.uri)
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(resolve(job, ClusterSettings()).to_json())
        if self.code == 0:
            (folder / "result.json").write_text(result.to_json())
        return self.code


PREDICT = ("predict", "runs/flowers", "test-*", "--to", "p.parquet")


def mptj(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_prediction_is_a_job_whose_run_folder_is_deleted_at_the_end(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeRun(loss=0.25)
    monkeypatch.setattr(local_run, "run_local", fake)

    assert mptj("predict", "runs/flowers", "test-*", "--to", "p.parquet", "--evaluate", "--skip-bad", "3") == 0

    (job,) = fake.jobs
    document = job.spec.to_document()
    assert document["program"]["prediction"] == {
        "model": str(here / "runs/flowers"),
        "to": str(here / "p.parquet"),
        "evaluate": True,
    }
    assert document["data"] == {"predict": [str(here / "test-*")], "badRecords": {"action": "Skip", "maxSkipped": 3}}
    assert document["output"]["uri"] == str(here / "p.parquet.run")
    assert not (here / "p.parquet.run").exists()
    printed = capsys.readouterr().out
    # The local run, which is a fake here, prints the metrics.
    target = str(here / "p.parquet")
    assert printed == f"predictions: {target}\nnext: pyarrow.parquet.read_table({target!r})\n"


def test_an_error_of_a_prediction_names_the_argument_of_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_local(*_: Any, error: Callable[[str], None], **__: Any) -> int:
        error("InvalidData: spec.data.predict: no file test-*. See spec.program.prediction.key.")
        return 2

    monkeypatch.setattr(local_run, "run_local", run_local)
    assert mptj(*PREDICT) == 2
    assert capsys.readouterr().err == "mptj: InvalidData: RECORDS: no file test-*. See --key.\n"
    assert mptj("ensemble", "a", "b", "--weights", "best") == 2
    assert "--weights: 'best'; expected equal or score" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--submit"]])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--accelerator", "foo"], "mptj: --accelerator: unknown accelerator 'foo'."),
        (["--accelerator", "cpu", "--nodes", "5000"], "mptj: --nodes: 5000 is not valid; expected at most 1024"),
    ],
)
def test_a_mistake_of_an_argument_names_it_here_and_on_a_cluster(
    here: Path, capsys: pytest.CaptureFixture[str], mode: list[str], wrong: list[str], said: str
) -> None:
    if not mode:
        assert mptj(*PREDICT) == 2
        assert capsys.readouterr().err.startswith(f"mptj: RECORDS: '{here}/test-*': nothing matches.")
    (here / "test-0").touch()
    assert mptj(*PREDICT, *wrong, *mode) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_mistake_of_the_job_file_names_its_field(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "job.yaml").write_text(
        "apiVersion: mptraining.dev/v1alpha1\nkind: MPTrainingJob\nmetadata: {name: a}\n"
        "spec: {accelerator: {type: cpu}, nodes: 5000, program: {application: {name: mlp}}, data: {train: [test-*]}}\n"
    )
    assert mptj("predict", "runs/flowers", "test-*", "--to", "p.parquet", "--job", "job.yaml") == 2
    printed = capsys.readouterr().err
    assert "spec.nodes: 5000 is not valid" in printed
    assert "--nodes" not in printed


def test_a_prediction_that_failed_keeps_its_parts_and_its_exit_code(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "run_local", FakeRun(code=130))
    assert mptj(*PREDICT) == 130
    assert (here / "p.parquet.run").is_dir()
    # The run folder of a training is never deleted.
    training = run_of("flowers").job
    (here / "p.parquet.run" / "job.json").write_text(training.to_json())
    monkeypatch.setattr(local_run, "run_local", lambda *_, **__: 2)
    assert mptj(*PREDICT) == 2
    assert (here / "p.parquet.run" / "job.json").exists()


def test_a_corrected_command_does_not_meet_the_folder_of_the_wrong_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The trainer has claimed the folder when it refuses a key that records lack.
    monkeypatch.setattr(local_run, "run_local", FakeRun(code=2))
    (here / "test-0").touch()
    wrong = ("predict", "runs/flowers", "test-*", "--to", "p.parquet", "--batch-size", "8")
    assert mptj(*wrong, "--key", "identity") == 2
    part = here / "p.parquet.run" / "predictions" / "part-00000-of-00001.parquet"
    part.parent.mkdir()
    part.touch()
    seen: list[bool] = []

    def refuses_foreign_folders(path: Path, *, document: dict[str, Any], **_: Any) -> int:
        # As the local run and the trainer do before they start.
        folder = Path(document["spec"]["output"]["uri"])
        job, _notes = local_run.resolve_for_machine(
            path, document=document, output=None, machine=local_run.this_machine()
        )
        seen.append(part.exists())
        stored = folder / "job.json"
        if stored.exists():
            assert run_folder.difference(ResolvedJob.read(stored.read_bytes()), job) is None
        return 1

    monkeypatch.setattr(local_run, "run_local", refuses_foreign_folders)
    assert mptj(*wrong, "--key", "identity") == 1
    assert mptj(*wrong, "--key", "id") == 1
    assert seen == [True, False]


def test_a_prediction_takes_the_accelerator_of_the_run_and_the_records_of_a_job_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": "flowers"},
        "spec": {
            "accelerator": {"type": "nvidia-tesla-t4", "countPerNode": 2},
            "program": {"application": {"name": "mlp", "classes": 3}},
            "data": {"train": ["train-*"], "label": "kind"},
        },
    }
    (here / "flowers.yaml").write_text(yaml.safe_dump(job))
    (here / "flowers").mkdir()
    (here / "flowers" / "job.json").write_text(resolve(MPTrainingJob.parse(job), ClusterSettings()).to_json())

    arguments = ("predict", "flowers", "test-*", "--to", "gs://b/p.parquet", "--job", "flowers.yaml", "--submit")
    assert mptj(*arguments, "--dry-run", "--nodes", "2") == 0

    printed = yaml.safe_load(capsys.readouterr().out)["spec"]
    assert printed["accelerator"] == {"type": "nvidia-tesla-t4", "countPerNode": 2}
    assert printed["data"] == {"predict": ["test-*"], "label": "kind"}
    assert printed["nodes"] == 2
    assert printed["output"] == {"uri": "gs://b/p.parquet.run"}


def test_an_ensemble_shows_its_members_and_compares_itself_with_the_best(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, loss in (("a", 0.3), ("b", 0.1), ("c", 0.2)):
        run = run_of(name, val_loss=loss)
        (here / name).mkdir()
        (here / name / "job.json").write_text(run.job.to_json())
        (here / name / "result.json").write_text(run.result.to_json())
    fake = FakeRun(val_loss=0.05, best_member_val_loss=0.1)
    monkeypatch.setattr(local_run, "run_local", fake)

    assert mptj("ensemble", "a", "b", "c", "--top", "2", "--weights", "score") == 0

    (job,) = fake.jobs
    assert job.spec.program.ensemble.members == [str(here / "b"), str(here / "c")]
    assert job.spec.program.ensemble.weights == pytest.approx([10, 5])
    assert job.spec.output.uri == str(here / "runs" / "ensemble")
    printed = capsys.readouterr().out
    assert f"member: {here / 'b'}  val_loss 0.1" in printed
    assert "val_loss: 0.05, best member 0.1" in printed
    assert json.loads((here / "runs" / "ensemble" / "result.json").read_text())["metrics"]["val_loss"] == 0.05
