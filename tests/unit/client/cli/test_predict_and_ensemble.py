"""`mptj predict` and `mptj ensemble`: their jobs, what they print, and the files that they leave; no TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining.cli.ensemble import choose, job_document
from mptraining.local import runner
from mptraining.local.local_job import LocalJob
from mptraining.local.runner import LocalRunner
from mptraining.prediction_job import job_name, prediction_document
from mptraining.runs import History, Run
from mptraining_api import run_folder
from mptraining_api.problems import FieldPlace, InvalidData, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.rules.check import violations
from mptraining_api.run_folder import Best, Result
from mptraining_api.spec import JOB_NAME, MPTrainingJob
from tests.jobs import resolved_job
from tests.testbed.stub_trainer import RESULT


def run_of(folder: str, model: str | None = "model", best: Best | None = None, **metrics: float) -> Run:
    data = {"train": ["/data/train-*"], "validation": ["/data/validation-*"], "label": "kind"}
    own = {"name": folder, "step": 9, "metrics": metrics, "model": model, "best": best}
    return Run(f"runs/{folder}", resolved_job(folder, data=data), Result(**(RESULT | own)), History())


class FakeRun:
    """Takes the place of a local run: keeps the job, and writes what the trainer would."""

    def __init__(self, code: int = 0, **metrics: float) -> None:
        self.code = code
        self.metrics = metrics
        self.jobs: list[MPTrainingJob] = []

    def __call__(self, document: dict[str, Any], display: object) -> LocalJob:
        job = MPTrainingJob.parse(document)
        self.jobs.append(job)
        result = run_of("p", **self.metrics).result
        folder = Path(job.spec.output.uri)
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(resolve(job, ClusterSettings()).to_json())
        if self.code == 0:
            (folder / "result.json").write_text(result.to_json())
        return LocalJob(job.metadata.name, str(folder), self.code)


Mptj = Callable[..., Any]
PREDICT = ("predict", "runs/flowers", "test-*", "--to", "p.parquet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_prediction_is_a_job_whose_run_folder_is_deleted_at_the_end(
    here: Path, monkeypatch: pytest.MonkeyPatch, mptj: Mptj
) -> None:
    fake = FakeRun(loss=0.25)
    monkeypatch.setattr(LocalRunner, "run", fake)

    done = mptj("predict", "runs/flowers", "test-*", "--to", "p.parquet", "--evaluate", "--skip-bad", "3")
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
    # The local run, which is a fake here, prints the metrics.
    target = str(here / "p.parquet")
    assert done.stdout == f"predictions: {target}\nnext: pyarrow.parquet.read_table({target!r})\n"


def test_an_error_of_a_prediction_names_the_argument_of_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch, mptj: Mptj
) -> None:
    def run(runner: LocalRunner, *_: object) -> LocalJob:
        fields = ("spec.data.predict[0]", "spec.program.prediction.key", "spec.output.uri")
        assert [str(runner.named(FieldPlace(field))) for field in fields] == ["RECORDS", "--key", "spec.output.uri"]
        return LocalJob("p", "p", 2)

    monkeypatch.setattr(LocalRunner, "run", run)
    assert mptj(*PREDICT).returncode == 2
    refused = mptj("ensemble", "a", "b", "--weights", "best")
    said = "mptj: Invalid value for '--weights': 'best' is not one of 'equal', 'score'. Help: mptj ensemble -h\n"
    assert (refused.returncode, refused.stderr) == (2, said)


@pytest.mark.parametrize("mode", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--accelerator", "foo"], "mptj: --accelerator: unknown accelerator 'foo'."),
        (["--accelerator", "cpu", "--workers", "5000"], "mptj: --workers: 5000 is not valid; expected at most 1024"),
    ],
)
def test_a_mistake_of_an_argument_names_it(
    here: Path, mptj: Mptj, mode: list[str], wrong: list[str], said: str
) -> None:
    if not mode:
        assert mptj(*PREDICT).stderr.startswith(f"mptj: RECORDS: '{here}/test-*': nothing matches.")
    (here / "test-0").touch()
    refused = mptj(*PREDICT, *wrong, *mode)
    assert (refused.returncode, refused.stderr[: len(said)]) == (2, said)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("missing", "mptj: MODEL: there is no model at '{here}/missing'; expected a run folder"),
        (".", "mptj: MODEL: there is no model at '{here}'; expected a run folder"),
        ("damaged.keras", "mptj: {here}/damaged.keras: no model in Keras' format; expected a file that"),
    ],
)
def test_an_absent_model_is_reported_once_before_a_worker_starts(here: Path, mptj: Mptj, model: str, said: str) -> None:
    for file in ("test-0", "damaged.keras"):
        (here / file).touch()
    refused = mptj("predict", model, "test-*", "--to", "p.parquet")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(said.format(here=here))


def test_a_mistake_of_the_job_file_names_its_field(here: Path, mptj: Mptj) -> None:
    (here / "job.yaml").write_text(
        "apiVersion: mptraining.dev/v1alpha1\nkind: MPTrainingJob\nmetadata: {name: a}\n"
        "spec: {accelerator: {type: cpu}, workers: 5000, program: {application: {name: mlp}}, data: {train: [a]}}\n"
    )
    printed = mptj(*PREDICT, "--job", "job.yaml").stderr
    assert "spec.workers: 5000 is not valid" in printed
    assert "--workers" not in printed


def test_a_prediction_that_failed_keeps_its_parts_and_its_exit_code(
    here: Path, monkeypatch: pytest.MonkeyPatch, mptj: Mptj
) -> None:
    monkeypatch.setattr(LocalRunner, "run", FakeRun(code=130))
    assert mptj(*PREDICT).returncode == 130
    assert (here / "p.parquet.run").is_dir()
    # The run folder of a training is never deleted.
    training = run_of("flowers").job
    (here / "p.parquet.run" / "job.json").write_text(training.to_json())
    monkeypatch.setattr(LocalRunner, "run", lambda *_: LocalJob("p", "p", 2))
    assert mptj(*PREDICT).returncode == 2
    assert (here / "p.parquet.run" / "job.json").exists()


def test_a_corrected_command_does_not_meet_the_folder_of_the_wrong_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, mptj: Mptj
) -> None:
    # The trainer has claimed the folder when it refuses a key that records lack.
    monkeypatch.setattr(LocalRunner, "run", FakeRun(code=2))
    (here / "test-0").touch()
    (here / "runs/flowers/model").mkdir(parents=True)
    (here / "runs/flowers/model/model.json").write_text('{"keras": {}}')
    wrong = (*PREDICT, "--batch-size-per-replica", "8")
    assert mptj(*wrong, "--key", "identity").returncode == 2
    part = here / "p.parquet.run" / "predictions" / "part-00000-of-00001.parquet"
    part.parent.mkdir()
    part.touch()
    seen: list[bool] = []

    def refuses_foreign_folders(_: LocalRunner, document: dict[str, Any], __: object) -> LocalJob:
        # As the local run and the trainer do before they start.
        folder = Path(document["spec"]["output"]["uri"])
        job, _notes = runner.resolve_for_machine(
            here / "predict", document=document, output=None, machine=runner.this_machine()
        )
        seen.append(part.exists())
        stored = folder / "job.json"
        if stored.exists():
            assert run_folder.difference(ResolvedJob.read(stored.read_bytes()), job) is None
        return LocalJob("p", "p", 1)

    monkeypatch.setattr(LocalRunner, "run", refuses_foreign_folders)
    assert mptj(*wrong, "--key", "identity").returncode == 1
    assert mptj(*wrong, "--key", "id").returncode == 1
    assert seen == [True, False]


def test_a_prediction_takes_the_accelerator_of_the_run_and_the_records_of_a_job_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, mptj: Mptj
) -> None:
    job = {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": "flowers"},
        "spec": {
            "accelerator": {"type": "t4", "countPerWorker": 2},
            "program": {"application": {"name": "mlp", "classes": 3}},
            "data": {"train": ["train-*"], "label": "kind"},
        },
    }
    (here / "flowers.yaml").write_text(yaml.safe_dump(job))
    (here / "flowers").mkdir()
    (here / "flowers" / "job.json").write_text(resolve(MPTrainingJob.parse(job), ClusterSettings()).to_json())

    arguments = ("predict", "flowers", "test-*", "--to", "gs://b/p.parquet", "--job", "flowers.yaml")
    printed = yaml.safe_load(mptj(*arguments, "--dry-run", "--workers", "2").stdout)["spec"]
    assert printed["accelerator"] == {"type": "t4", "countPerWorker": 2}
    assert printed["data"] == {"predict": ["test-*"], "label": "kind"}
    assert printed["workers"] == 2
    assert printed["output"] == {"uri": "gs://b/p.parquet.run"}


def test_an_ensemble_shows_its_members_and_compares_itself_with_the_best(
    here: Path, monkeypatch: pytest.MonkeyPatch, mptj: Mptj
) -> None:
    for name, loss in (("a", 0.3), ("b", 0.1), ("c", 0.2)):
        run = run_of(name, val_loss=loss)
        (here / name).mkdir()
        (here / name / "job.json").write_text(run.job.to_json())
        (here / name / "result.json").write_text(run.result.to_json())
    fake = FakeRun(val_loss=0.05, best_member_val_loss=0.1)
    monkeypatch.setattr(LocalRunner, "run", fake)

    printed = mptj("ensemble", "a", "b", "c", "--top", "2", "--weights", "score").stdout
    (job,) = fake.jobs
    assert job.spec.program.ensemble.members == [str(here / "b"), str(here / "c")]
    assert job.spec.program.ensemble.weights == pytest.approx([10, 5])
    assert job.spec.output.uri == str(here / "runs" / "ensemble")
    assert f"member: {here / 'b'}  val_loss 0.1" in printed
    assert "val_loss: 0.05, best member 0.1" in printed
    assert json.loads((here / "runs" / "ensemble" / "result.json").read_text())["metrics"]["val_loss"] == 0.05


def folders(*chosen: Any) -> list[str]:
    members, _ = choose(*chosen)
    return [member.folder for member, _ in members]


def test_the_best_are_those_with_the_least_loss_and_the_most_accuracy() -> None:
    runs = [run_of("a", val_loss=0.3, val_accuracy=0.8), run_of("b", val_loss=0.1, val_accuracy=0.7)]
    runs.append(run_of("c", val_loss=0.2, val_accuracy=0.9))

    assert folders(runs, "val_loss", None) == ["runs/b", "runs/c", "runs/a"]
    assert folders(runs, "val_accuracy", None) == ["runs/c", "runs/a", "runs/b"]
    assert folders(runs, "val_accuracy", "min") == ["runs/b", "runs/a", "runs/c"]


def test_the_value_of_a_run_is_that_of_the_exported_weights(capsys: pytest.CaptureFixture[str]) -> None:
    exported = Best(monitor="val_loss", mode="min", step=3, value=0.05)
    runs = [run_of("a", val_loss=0.1), run_of("b", best=exported, val_loss=0.9, val_accuracy=0.5)]
    members, _ = choose(runs, "val_loss", None)
    assert [value for _, value in members] == [0.05, 0.1]
    others = [run_of("c", val_accuracy=0.3), run_of("d", val_accuracy=0.2)]
    assert folders([*runs, *others], "val_accuracy", None) == ["runs/c", "runs/d"]
    assert "note: runs/b has no val_accuracy of its exported weights" in capsys.readouterr().err
    # A metric of unknown direction needs a mode.
    scored = [run_of("a", val_score=0.5), run_of("b", val_score=0.4)]
    with pytest.raises(InvalidSpec, match=r"--mode.*expected min or max"):
        choose(scored, "val_score", None)
    assert folders(scored, "val_score", "min") == ["runs/b", "runs/a"]


def test_runs_that_cannot_be_members_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        run_of("a", val_loss=0.3),
        run_of("b", val_loss=0.1),
        run_of("c", model=None, val_loss=0.2),
        run_of("d", loss=1.0),
    ]
    assert folders([*runs, replace(runs[0], folder="runs/a/")], "val_loss", None) == ["runs/b", "runs/a/"]
    said = capsys.readouterr().err
    assert "runs/c has no exported model" in said
    assert "runs/d has no val_loss" in said
    with pytest.raises(InvalidData, match=r"1 runs can be members; expected two or more"):
        choose([runs[0], runs[2]], "val_loss", None)
    with pytest.raises(InvalidData, match="Did you mean 'val_loss'"):
        choose(runs, "val_los", None)


def test_the_document_is_a_valid_job_over_the_records_of_the_best_member() -> None:
    members, better = choose([run_of("a", val_loss=0.1), run_of("b", val_loss=0.4)], "val_loss", None)
    job = MPTrainingJob.parse(job_document("both", members, "score", better, "runs/both"))
    assert violations(job) == []
    assert job.spec.program.ensemble.members == ["runs/a", "runs/b"]
    assert job.spec.program.ensemble.weights == pytest.approx([10, 2.5])
    assert (job.spec.data.validation, job.spec.data.label) == (["/data/validation-*"], "kind")
    assert job_document("both", members, "equal", better, "r")["spec"]["program"]["ensemble"].keys() == {"members"}
    with pytest.raises(InvalidSpec, match="--weights: score with a value that is not above 0"):
        job_document("both", [(members[0][0], -0.2), members[1]], "score", better, "r")


def test_a_job_is_named_after_its_model() -> None:
    names = {
        "gs://bucket/flowers": "predict-flowers", "runs/Flowers_2/model/": "predict-flowers-2",
        "m.keras": "predict-m", "/": "predict", "x" * 99: "predict-" + "x" * 42, "a/ü.keras": "predict",
    }  # fmt: skip
    assert {model: job_name(model) for model in names} == names
    assert all(JOB_NAME.fullmatch(name) for name in names.values())


def test_the_document_is_a_valid_job_with_the_records_of_a_job_file() -> None:
    document = prediction_document(
        "gs://bucket/flowers",
        ["gs://bucket/test-*"],
        accelerator={"type": "cpu"},
        workers=3,
        prediction={"to": "gs://bucket/p.parquet", "key": "id", "batchSize": None, "evaluate": None},
        data={"train": ["ignored"], "label": "kind", "shuffle": {"mode": "Full"}},
        skip_bad=4,
        output="gs://bucket/p.parquet.run",
    )

    job = MPTrainingJob.parse(document)
    assert violations(job) == []
    assert job.spec.data.to_document() == {
        "predict": ["gs://bucket/test-*"],
        "label": "kind",
        "badRecords": {"action": "Skip", "maxSkipped": 4},
    }
    resolved = resolve(job, ClusterSettings())
    assert (resolved.workers, resolved.strategy, resolved.precision.policy) == (3, "Mirrored", "float32")
    assert resolved.training is None
