"""`mptj runtimes` and `mptj check --runtimes`: files without a cluster, and the ConfigMap of the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from mptraining.cli import runtimes as command
from mptraining.cli.main import app
from mptraining.cluster import connection
from mptraining.cluster.connection import Cluster
from mptraining.cluster.errors import ClusterProblem
from mptraining.job_file.runtimes_file import load
from mptraining_api import outcomes
from mptraining_api.problems import InvalidSpec

SETTINGS = {
    "defaultRuntimes": {"vision": "team-default"},
    "runtimes": {
        "plain": {},
        "team-default": {
            "description": "T4 on Spot",
            "provisioning": "Spot",
            "images": {"gpu": "registry.example/gpu:1"},
            "podTemplate": {"nodeSelector": {"pool": "shared"}},
            "limits": {"workersPerJob": 4},
        },
    },
}
JOB = """\
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: flowers}
spec:
  accelerator: {type: t4}
  runtime: RUNTIME
  program: {application: {name: cnn, classes: 5}}
  data: {train: ["gs://bucket/train"]}
"""


def write(folder: Path, document: object) -> str:
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(file)


def test_the_list_says_what_each_adds(tmp_path: Path) -> None:
    # The settings themselves, and the chart's values with them in a section.
    for document in ({**SETTINGS, "cpuFallback": True}, {"settings": SETTINGS, "replicas": 2}):
        lines = CliRunner().invoke(app, ["runtimes", "--filename", write(tmp_path, document)]).stdout.splitlines()
        assert lines[0].split() == ["NAME", "NAMESPACES", "ADDS", "LIMITS", "WHAT"]
        assert lines[1].split() == ["plain", "-", "-", "-", "-"]
        for text in ("vision", "Spot, image for gpu, nodeSelector", "workersPerJob 4", "T4 on Spot"):
            assert text in lines[2]


def test_what_it_prints_is_what_check_takes(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["runtimes", "-o", "yaml", "-f", write(tmp_path, SETTINGS)]).stdout
    (tmp_path / "known.yaml").write_text(printed, encoding="utf-8")
    known = str(tmp_path / "known.yaml")
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("RUNTIME", "team-default"), encoding="utf-8")
    assert "from the runtime team-default" in CliRunner().invoke(app, ["check", str(job), "--runtimes", known]).stdout
    assert "known to the cluster only" in CliRunner().invoke(app, ["check", str(job)]).stdout
    job.write_text(JOB.replace("RUNTIME", "other"), encoding="utf-8")
    refused = CliRunner().invoke(app, ["check", str(job), "--runtimes", known])
    assert refused.exit_code == 2
    assert (
        ":6: spec.runtime: 'other' is no runtime of this cluster; expected one of default, plain, team-"
        in refused.stderr
    )


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"missing\.yaml: No such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(InvalidSpec, match="no mapping"):
        load(Path(write(tmp_path, ["a"])))
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG")
    with pytest.raises(InvalidSpec, match=r"picture\.yaml: not a text file; expected a YAML file with runtimes"):
        load(tmp_path / "picture.yaml")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"foo": 1}, "no runtimes, but foo; expected runtimes: {name: …} in a file of settings, settings: {runtimes"),
        ({"settings": {"defaultRuntimes": {"vision": "nope"}}}, "defaultRuntimes.vision: 'nope' is no runtime"),
        ({"settings": []}, "settings is no mapping; expected"),
        ({"cpuFallback": True, "logLevel": "INFO"}, "no runtimes, but cpuFallback, logLevel; expected"),
        ({"kind": "ConfigMap", "data": {"other.yaml": "a"}}, "a ConfigMap without data.runtimes.yaml; expected"),
        ({}, "no runtimes, but nothing"),
    ],
)
def test_a_file_without_runtimes_is_refused_with_the_accepted_forms(
    tmp_path: Path, document: object, words: str
) -> None:
    file = write(tmp_path, document)
    with pytest.raises(InvalidSpec) as caught:
        load(Path(file))
    assert words in str(caught.value)
    # The code with which the command ends.
    assert outcomes.by_reason(caught.value.reason).exit_code == 2
    assert isinstance(CliRunner().invoke(app, ["runtimes", "-f", file]).exception, InvalidSpec)
    both = CliRunner().invoke(app, ["runtimes", "-f", file, "-n", "team"]).exception
    assert str(both) == "--filename: given together with --namespace; expected one of them"


WRONG = {"runtimes": {"vision": {"images": {"gpu": "BAD IMAGE"}}}}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (WRONG, "settings.yaml:4: "),
        ({"settings": WRONG, "replicas": 2}, "settings.yaml:6: settings."),
        ({"kind": "ConfigMap", "data": {"runtimes.yaml": yaml.safe_dump(WRONG)}},
         "settings.yaml: data['runtimes.yaml']: "),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_place_in_that_file(tmp_path: Path, document: object, place: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load(Path(write(tmp_path, document)))
    assert f"{place}runtimes.vision.images.gpu: 'BAD IMAGE'" in str(caught.value)


def test_the_config_map_of_the_chart_is_read_and_settings_may_have_no_runtimes(tmp_path: Path) -> None:
    stored = {"kind": "ConfigMap", "metadata": {"name": "mptraining-runtimes"}}
    file = write(tmp_path, {**stored, "data": {"runtimes.yaml": yaml.safe_dump(SETTINGS)}})
    assert set(load(Path(file)).runtimes) == {"plain", "team-default"}
    for document in ({"runtimes": {}}, {"settings": {"runtimes": {}, "defaultRuntimes": {}}}):
        assert load(Path(write(tmp_path, document))).runtimes == {}


def test_a_cluster_publishes_its_runtimes_and_may_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Server:
        def __init__(self, namespace: str = "") -> None:
            self.namespace = namespace

        def in_namespace(self, namespace: str) -> Server:
            return Server(namespace)

        def get(self, _: object, name: str) -> dict[str, Any]:
            asked.append((self.namespace, name))
            if self.namespace == "empty":
                problem = ClusterProblem("ConfigMap", "not found")
                problem.status = 404
                raise problem
            return {"data": {"runtimes.yaml": yaml.safe_dump(SETTINGS)}}

    monkeypatch.setattr(connection, "connect", lambda _: Server())
    assert set(command.of_cluster(Cluster(), "mptraining-system").runtimes) == {"plain", "team-default"}
    assert command.of_cluster(Cluster(), "empty").runtimes == {}
    assert asked == [("mptraining-system", "mptraining-runtimes"), ("empty", "mptraining-runtimes")]
