"""`mptj convert-tfjob` on TFJobs that other people wrote (jobs.yaml names the repositories) and on small ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from mptraining.cli.main import app
from mptraining.tfjob import Choices, Conversion, convert_file
from mptraining_api.accelerators import canonical_name
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.validation.mistakes import InvalidJobFile, field_text
from tests.jobs import parsed_job

JOBS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "jobs.yaml").read_text(encoding="utf-8"))


def _jobs(kind: str) -> list[Any]:
    return [pytest.param(entry, id=entry["source"].split()[0]) for entry in JOBS if kind in entry]


def _converted(entry: dict[str, Any], folder: Path) -> Conversion:
    given: dict[str, Any] = {"without": ()}
    flags = iter(entry.get("flags", ()))
    for name, value in zip(flags, flags, strict=True):
        key = name.removeprefix("--").replace("-", "_")
        given[key] = (*given["without"], value) if key == "without" else value
    if "accelerator" in given:
        given["accelerator"] = canonical_name(given["accelerator"])
    return _convert(folder, entry["tfjob"], **given)


def _convert(folder: Path, *documents: dict[str, Any], **choices: Any) -> Conversion:
    path = folder / "tfjob.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return convert_file(path, Choices(**choices))[0]


@pytest.mark.parametrize("entry", _jobs("spec"))
def test_a_tfjob_becomes_a_job_that_can_work(entry: dict[str, Any], tmp_path: Path) -> None:
    document = _converted(entry, tmp_path).document
    assert {name: document["spec"].get(name) for name in entry["spec"]} == entry["spec"]
    assert resolve(parsed_job(yaml.safe_dump(document)), ClusterSettings()).name == document["metadata"]["name"]


@pytest.mark.parametrize("entry", _jobs("refused"))
def test_fields_without_a_counterpart_are_refused_with_their_lines(entry: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidJobFile) as raised:
        _converted(entry, tmp_path)
    found = {mistake.problem.where: str(mistake) for mistake in raised.value.mistakes}
    assert set(found) == set(entry["refused"])
    assert all(text in found[field] for field, text in entry["refused"].items())


def _values(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], object]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _values(item, (*path, name))
    if not isinstance(value, dict | list):
        yield path, value


@pytest.mark.parametrize("entry", _jobs("spec"))
def test_no_field_is_dropped_silently(entry: dict[str, Any], tmp_path: Path) -> None:
    converted = _converted(entry, tmp_path)
    known = {str(value) for _, value in _values(converted.document)}
    left_out = tuple(field_text(path) for path in converted.left_out)
    reworked = ("command", "args", "replicas", "gpu", "accelerator", "gke-", "backoffLimit")
    dropped = [
        field_text(path)
        for path, value in _values(entry["tfjob"])
        if str(value) not in known
        and not field_text(path).startswith(left_out)
        and not any(word in field_text(path) for word in reworked)
    ]
    assert dropped == []


def test_the_command_writes_a_file_that_check_accepts(tmp_path: Path) -> None:
    (tmp_path / "tfjob.yaml").write_text(yaml.safe_dump(JOBS[0]["tfjob"]), encoding="utf-8")
    written = tmp_path / "job.yaml"
    runner = CliRunner()
    done = runner.invoke(app, ["convert-tfjob", str(tmp_path / "tfjob.yaml"), "--to", str(written)])
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert "left out" in done.stderr
    assert runner.invoke(app, ["check", str(written)]).exit_code == 0


def _container(**fields: Any) -> dict[str, Any]:
    return {"name": "tensorflow", "image": "example/flowers", "command": ["python", "/app/train.py"], **fields}


def _replica(container: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    return {"replicas": 1, "template": {"spec": {"containers": [container or _container()], **pod}}}


def _tfjob(name: str = "flowers", spec: dict[str, Any] | None = None, **replicas: Any) -> dict[str, Any]:
    content = {**(spec or {}), "tfReplicaSpecs": replicas or {"Worker": _replica()}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name}, "spec": content}


@pytest.mark.parametrize(
    ("command", "arguments", "script"),
    [
        (["python3.11", "-u", "a/train.py", "-x"], [], {"path": "a/train.py", "arguments": ["-x"]}),
        (["/app/train.py", "1"], [], {"path": "train.py", "arguments": ["1"]}),
        (["/bin/bash", "-c", "--", "cd /root && exec python worker.py --a b"], [],
         {"path": "worker.py", "arguments": ["--a", "b"]}),
        ([], ["python", "./train.py"], {"path": "train.py"}),
    ],
)  # fmt: skip
def test_a_command_line_names_its_python_file(
    command: list[str], arguments: list[str], script: dict[str, Any], tmp_path: Path
) -> None:
    tfjob = _tfjob(Worker=_replica(_container(command=command, args=arguments)))
    assert _convert(tmp_path, tfjob).document["spec"]["program"]["script"] == script


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-m", "flowers.train"],
        ["sh", "-c", "pip install x && python train.py"],
        ["python", "train.py", "--rate=$(RATE)"],
        ["mpirun", "-np", "2", "python", "train.py"],
    ],
)
def test_another_command_line_needs_the_name_of_the_file(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"--script train.py"):
        _convert(tmp_path, _tfjob(Worker=_replica(_container(command=command))))


def test_labels_of_nodes_name_the_accelerator(tmp_path: Path) -> None:
    container = _container(resources={"limits": {"nvidia.com/gpu": 2, "memory": "8Gi"}})
    selector = {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100", "cloud.google.com/gke-spot": "true"}
    replica = _replica(container, nodeSelector={**selector, "pool": "a"})
    spec = _convert(tmp_path, _tfjob(Worker=replica)).document["spec"]
    assert spec["accelerator"] == {"type": "a100", "countPerWorker": 2, "provisioning": "Spot"}
    assert spec["podTemplate"] == {"resources": {"limits": {"memory": "8Gi"}}, "nodeSelector": {"pool": "a"}}


@pytest.mark.parametrize(
    ("tfjob", "expected"),
    [
        (_tfjob(Worker=_replica(), Evaluator=_replica()), "Evaluator: has no counterpart. Let `model.fit` evaluate"),
        (_tfjob(Chief=_replica(), Worker=_replica(_container(args=["-x"]))),
         "Worker: differs: spec.program.script.arg"),
        (_tfjob(Worker=_replica(_container(resouces={"a": 1}))),
         "resouces: has no counterpart. Did you mean 'resources'?"),
        (_tfjob(spec={"enableDynamicWorker": True}), "`elastic: {min, max}` in place of workers"),
        (_tfjob(Worker=_replica(volumes=[{"name": "a", "nfs": {}}])), "volumes[0]"),
        (_tfjob(name="Flowers_1"), "metadata.name"),
        (_tfjob(Worker=_replica(_container(resources="x"))), "resources: 'x'; expected a section with fields"),
        (_tfjob(Worker=_replica(_container(resources={"limits": "x"}))), "spec.podTemplate.resources.limits"),
        (_tfjob(Worker=_replica(nodeSelector=["x"])), "nodeSelector: ['x']; expected labels of nodes"),
        (_tfjob(Worker=_replica(_container(resources={"limits": {"nvidia.com/gpu": 1}}))), "--accelerator t4"),
    ],
)  # fmt: skip
def test_refusals_name_the_field_and_the_next_step(tfjob: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as raised:
        _convert(tmp_path, tfjob)
    assert expected in str(raised.value)


def test_a_field_that_is_left_out_by_the_user_counts_as_absent(tmp_path: Path) -> None:
    where = "spec.tfReplicaSpecs.Evaluator"
    tfjob = _tfjob(Worker=_replica(), Evaluator=_replica())
    assert "workers" not in _convert(tmp_path, tfjob, without=(where,)).document["spec"]
    with pytest.raises(InvalidSpec, match=r"--without: the file has no spec\.x"):
        _convert(tmp_path, tfjob, without=(where, "spec.x"))


def test_several_jobs_of_a_file_get_a_run_folder_each(tmp_path: Path) -> None:
    path = tmp_path / "tfjob.yaml"
    path.write_text(yaml.safe_dump_all([_tfjob(), _tfjob("roses"), {"kind": "Service"}]), encoding="utf-8")
    folders = [job.document["spec"]["output"]["uri"] for job in convert_file(path, Choices(run_folder="gs://b/runs/"))]
    assert folders == ["gs://b/runs/flowers", "gs://b/runs/roses"]
