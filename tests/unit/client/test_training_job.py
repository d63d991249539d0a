"""The job as Python objects: names, completion, errors, and the document that they make."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import mptraining
from mptraining.cluster.submission import check
from mptraining.local.runner import LocalRunner, Machine
from mptraining.training_job import TrainingJob, arguments_named, job_document
from mptraining_api.model import Model
from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.spec import JobSpec
from mptraining_api.validation.mistakes import InvalidJobFile


def flowers(**more: Any) -> TrainingJob:
    return mptraining.TrainingJob(
        name="flowers",
        accelerator=mptraining.Accelerator(type="t4", count_per_worker=4, provisioning="Spot"),
        program=mptraining.Program(application=mptraining.Application(name="cnn", classes=5)),
        data=mptraining.Data(
            train=("records/train-*.tfrecord",),
            features=[mptraining.Feature(name="image", dtype="uint8", shape=(28, 28, 1), decode="png")],
        ),
        training=mptraining.Training(
            epochs=np.int64(5),
            batch_size=mptraining.BatchSize(global_=64),
            optimizer=mptraining.KerasObject(class_name="Adam", config={"learning_rate": np.float32(0.5)}),
            class_weight={0: 1.0, 1: 3.0},
        ),
        **more,
    )


def test_it_is_the_document_of_a_job_file() -> None:
    document = flowers(labels={"team": "vision"}).to_document()
    assert document == {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": "flowers", "labels": {"team": "vision"}},
        "spec": {
            "accelerator": {"type": "t4", "countPerWorker": 4, "provisioning": "Spot"},
            "program": {"application": {"name": "cnn", "classes": 5}},
            "data": {
                "train": ["records/train-*.tfrecord"],
                "features": [{"name": "image", "dtype": "uint8", "shape": [28, 28, 1], "decode": "png"}],
            },
            "training": {
                "epochs": 5,
                "batchSize": {"global": 64},
                "optimizer": {"className": "Adam", "config": {"learning_rate": 0.5}},
                "classWeight": {"0": 1.0, "1": 3.0},
            },
        },
    }
    assert check(job_document(flowers())).resolved.name == "flowers"


def sections(kind: type[BaseModel]) -> set[type[BaseModel]]:
    """Return the classes of the fields of a class of the resource, and of their fields."""
    found: set[type[BaseModel]] = set()

    def walk(annotation: Any) -> None:
        if inspect.isclass(annotation) and issubclass(annotation, Model):
            found.add(annotation)
            for field in annotation.model_fields.values():
                walk(field.annotation)
        for inner in typing.get_args(annotation):
            walk(inner)

    walk(kind)
    return found


def test_every_section_of_the_resource_has_its_class() -> None:
    for kind in sections(JobSpec) - {JobSpec}:
        public = getattr(mptraining, kind.__name__)
        assert issubclass(public, kind)
        assert kind.__name__ in mptraining.__all__


def test_editors_see_python_names_and_descriptions() -> None:
    parameters = inspect.signature(mptraining.Accelerator).parameters
    assert list(parameters)[:4] == ["type", "count_per_worker", "topology", "provisioning"]
    assert parameters["type"].default is inspect.Parameter.empty
    assert parameters["topology"].default is None
    documented = inspect.getdoc(mptraining.Accelerator) or ""
    assert documented.startswith("The accelerator of each worker, and those that the job takes instead")
    assert "count_per_worker: Accelerators of each worker" in documented
    assert repr(mptraining.Application(name="cnn")) == "Application(name='cnn')"


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("Accelerator", {"type": "cpu", "countPerWorker": 2}, "countPerWorker=…): unknown argument. Did you mean 'c"),
        ("Accelerator", {"type": "cpu", "count_per_worker": 0}, "count_per_worker=…): 0 is not valid; expected"),
        ("Accelerator", {}, "type=…): missing. Give this argument"),
        ("Data", {"train": ["a"], "features": [{"name": "x", "dtype": "int"}]},
         "features[0].dtype=…): 'int' is not valid; expected 'int8', 'uint8'"),
        ("Training", {"epochs": "five"}, "epochs=…): 'five' is not valid; expected a whole number"),
        ("Data", {"train": "a"}, "train=…): 'a' is not valid; expected a list: [a, b]"),
        ("TrainingJob", {"name": "x", "accelerator": "cpu", "program": mptraining.Program()},
         "accelerator=…): 'cpu' is not valid; expected Accelerator(…)"),
        ("Training", {"optimizer": b""}, "optimizer=…): b'' is not valid; expected text, a number"),
    ],
)  # fmt: skip
def test_an_invalid_argument_is_named_as_in_python(kind: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        getattr(mptraining, kind)(**arguments)
    assert str(refused.value).startswith(f"{kind}({message}")


def test_rules_between_sections_name_python_arguments() -> None:
    job = flowers().model_copy(update={"workers": 2, "strategy": "None"})
    with pytest.raises(InvalidSpec) as refused:
        check(job_document(job))
    assert refused.value.where.startswith("spec.")
    with pytest.raises(InvalidSpec, match=rf"^{refused.value.where.removeprefix('spec.')}: "):
        mptraining.submit(job)
    for written, name in ((job, "training.batch_size.global_"), ({}, "spec.training.batchSize.global")):
        with pytest.raises(InvalidSpec, match=rf"^{name}: 3$"), arguments_named(written):
            raise InvalidSpec("spec.training.batchSize.global", "3")


def test_a_local_run_takes_it_and_gives_the_job(tmp_path: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "train-0.tfrecord").touch()
    command = stub(
        "job = json.load(open(os.environ['MPTRAINING_JOB_FILE']))\n"
        "folder = job['output']; os.makedirs(folder + '/events')\n"
        "open(folder + '/job.json', 'w').write(json.dumps(job))\n"
        "print(job['data']['train'], os.environ['MPTRAINING_SOURCE_FOLDER'], file=open('seen.txt', 'w'))\n"
        "finish('Succeeded', 0)"
    )
    runner = LocalRunner(command=command, machine=Machine(gpu=False, tpu=False))
    job = runner.run(flowers())
    assert job.run_folder == str(tmp_path / "runs" / "flowers")
    assert (tmp_path / "seen.txt").read_text().split() == [f"['{tmp_path}/records/train-*.tfrecord']", str(tmp_path)]
    # The mapping of a job file is the same.
    document = flowers().to_document()
    document["metadata"]["name"] = "roses"
    assert runner.run(document).name == "roses"
    failing = LocalRunner(command=stub("finish('ProgramFailed', 1, 'broken')"), output="other").run(flowers())
    assert (failing.exit_code, failing.run_folder) == (1, str(tmp_path / "other"))
    monkeypatch.setattr(LocalRunner, "run", lambda *_, **__: failing)
    with pytest.raises(InvalidProgram, match=rf"ended with exit code 1. See the lines above.* in {tmp_path}/other"):
        mptraining.run_local(flowers())
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSpec, match=r"^accelerator.type: "):
        runner.run(flowers().model_copy(update={"accelerator": mptraining.Accelerator(type="gtx")}))


def test_a_mapping_with_mistakes_is_refused_with_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = flowers().to_document()
    document["spec"]["accelerator"]["type"] = "gtx"
    document["spec"]["training"] = {"epochs": "many"}
    with pytest.raises(InvalidJobFile) as refused:
        LocalRunner(command=("false",)).run(document)
    lines = str(refused.value).splitlines()
    assert len(lines) >= 3
    # The data is missing as well.
    for where in ("spec.accelerator.type", "spec.training.epochs", "spec.data.train"):
        assert any(line.startswith(where) for line in lines), lines
    # No name, no fields, nothing but nonsense.
    for nonsense in (None, {}, {"metadata": 3}, {"metadata": {"name": ["a"]}, "spec": []}):
        with pytest.raises(InvalidSpec):
            LocalRunner(command=("false",)).run(nonsense)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("call", [mptraining.run_local, mptraining.submit, mptraining.sweep, mptraining.submit_sweep])
def test_an_unknown_argument_is_named_with_the_function_that_was_called(call: Callable[..., Any]) -> None:
    for job in ({}, flowers):
        with pytest.raises(TypeError, match=rf"^{call.__name__}\(\) takes no argument 'paralel'"):
            call(job, paralel=1)
    if "sweep" not in call.__name__:
        with pytest.raises(InvalidSpec, match=r"^kind: 'MPTrainingSweep'; expected 'MPTrainingJob'\. Give it to"):
            call({"kind": "MPTrainingSweep"})
