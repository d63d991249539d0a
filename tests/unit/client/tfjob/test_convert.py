"""The rules of `mptj convert-tfjob`, each on the smallest TFJob that shows it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mptraining.tfjob.convert import Conversion, convert_file
from mptraining.tfjob.program import CommandLine, NoScript, expanded, parse
from mptraining.tfjob.replica import Choices
from mptraining_api.problems import InvalidSpec, Problem
from mptraining_api.validation.mistakes import InvalidJobFile


def _container(**fields: Any) -> dict[str, Any]:
    return {"name": "tensorflow", "image": "example/flowers", "command": ["python", "/app/train.py"], **fields}


def _replica(container: dict[str, Any] | None = None, *, replicas: int = 1, **pod: Any) -> dict[str, Any]:
    return {"replicas": replicas, "template": {"spec": {"containers": [container or _container()], **pod}}}


def _tfjob(spec: dict[str, Any] | None = None, **replicas: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "flowers"},
        "spec": {**(spec or {}), "tfReplicaSpecs": replicas or {"Worker": _replica()}},
    }


def _convert(folder: Path, *documents: dict[str, Any], without: tuple[str, ...] = (), **choices: str) -> Conversion:
    path = folder / "tfjob.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return convert_file(path, Choices(**choices), without=without)[0][0]


def _refused(folder: Path, *documents: dict[str, Any], without: tuple[str, ...] = (), **choices: str) -> str:
    with pytest.raises(InvalidSpec) as raised:
        _convert(folder, *documents, without=without, **choices)
    return str(raised.value)


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        (["python3.11", "-u", "a/train.py", "-x"], [], CommandLine("a/train.py", ("-x",), ("-u",))),
        (["/usr/bin/python"], ["train.py"], CommandLine("train.py")),
        ([], ["python", "train.py"], CommandLine("train.py")),
        (["./train.py", "1"], [], CommandLine("./train.py", ("1",))),
        (["python", "-W", "ignore", "train.py"], [], CommandLine("train.py", (), ("-W", "ignore"))),
        (["bash", "-c"], ["python train.py --name 'a b'"], CommandLine("train.py", ("--name", "a b"))),
        (["/bin/sh", "-ec", "exec python -u train.py"], [], CommandLine("train.py", (), ("-u",))),
        (["/bin/bash", "-c", "--", "cd /root && python ./worker.py"], [], CommandLine("./worker.py", folder="/root")),
    ],
)
def test_a_command_line_names_its_python_file(command: list[str], arguments: list[str], expected: CommandLine) -> None:
    assert parse(command, arguments) == expected


@pytest.mark.parametrize(
    ("words", "found", "step"),
    [
        ([], "the entrypoint of the image", "--script train.py"),
        (["python", "-m", "flowers.train"], "a module", "--script flowers/train.py"),
        (["python", "-c", "import flowers"], "no file", "--script"),
        (["sh", "run.sh"], "a shell script", "--script"),
        (["sh", "-c", "pip install x && python train.py"], "a line of a shell", "Move what comes before"),
        (["sh", "-c", "python train.py --rate $RATE"], "a line of a shell", "--script"),
        (["sh", "-c", "python 'train.py"], "a line of a shell", "--script"),
        (["mpirun", "-np", "2", "python", "train.py"], "'mpirun' is no Python program", "--script"),
    ],
)
def test_other_command_lines_are_refused_with_what_to_do(words: list[str], found: str, step: str) -> None:
    with pytest.raises(NoScript) as raised:
        parse(words, [])
    assert found in raised.value.found
    assert step in raised.value.next_step


def test_variables_in_a_command_line_are_replaced_as_the_kubelet_does() -> None:
    assert expanded(["--rate=$(RATE)", "$$(RATE)", "$(OTHER)"], {"RATE": "0.1"}) == [
        "--rate=0.1",
        "$(RATE)",
        "$(OTHER)",
    ]
    with pytest.raises(NoScript):
        expanded(["$(POD_NAME)"], {"POD_NAME": None})


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (
            {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100", "cloud.google.com/gke-spot": "true"},
            {"type": "nvidia-tesla-a100", "countPerNode": 2, "provisioning": "Spot"},
        ),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, {"type": "nvidia-tesla-t4", "countPerNode": 2}),
        ({"accelerator": "nvidia-tesla-v100"}, {"type": "nvidia-tesla-v100", "countPerNode": 2}),
    ],
)
def test_labels_of_nodes_name_the_accelerator(
    selector: dict[str, str], expected: dict[str, Any], tmp_path: Path
) -> None:
    container = _container(resources={"limits": {"nvidia.com/gpu": 2, "memory": "8Gi"}})
    replica = _replica(container, nodeSelector={**selector, "pool": "team"})
    spec = _convert(tmp_path, _tfjob(Worker=replica)).document["spec"]
    assert spec["accelerator"] == expected
    assert spec["podTemplate"] == {"resources": {"limits": {"memory": "8Gi"}}, "nodeSelector": {"pool": "team"}}
    # Two devices: without a strategy of its own the program would use one.
    assert spec["strategy"] == "None"


def test_a_tpu_has_its_topology(tmp_path: Path) -> None:
    container = _container(resources={"limits": {"google.com/tpu": 4}})
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    spec = _convert(tmp_path, _tfjob(Worker=_replica(container, nodeSelector=selector))).document["spec"]
    assert spec["accelerator"] == {"type": "tpu-v5-lite-podslice", "topology": "2x2"}


def test_an_accelerator_that_is_not_there_needs_a_choice(tmp_path: Path) -> None:
    container = _container(resources={"limits": {"nvidia.com/gpu": 1}})
    selector = {"cloud.google.com/gke-accelerator": "nvidia-tesla-k80"}
    tfjob = _tfjob(Worker=_replica(container, nodeSelector=selector))
    assert "'nvidia-tesla-k80'" in _refused(tmp_path, tfjob)
    chosen = _convert(tmp_path, tfjob, accelerator="nvidia-tesla-t4").document["spec"]
    assert chosen["accelerator"] == {"type": "nvidia-tesla-t4", "countPerNode": 1}


def test_code_in_a_mounted_config_map_is_the_source(tmp_path: Path) -> None:
    container = _container(
        command=["python", "/var/code/flowers/train.py"], volumeMounts=[{"name": "code", "mountPath": "/var/code"}]
    )
    replica = _replica(container, volumes=[{"name": "code", "configMap": {"name": "flowers"}}])
    spec = _convert(tmp_path, _tfjob(Worker=replica)).document["spec"]
    assert spec["source"] == {"configMap": {"name": "flowers"}}
    assert spec["program"]["script"]["path"] == "flowers/train.py"


def test_an_image_of_ones_own_has_its_code(tmp_path: Path) -> None:
    spec = _convert(tmp_path, _tfjob(), image="example/with-trainer").document["spec"]
    assert spec["podTemplate"] == {"image": "example/with-trainer"}
    assert "source" not in spec


def test_the_run_policy_is_that_of_the_job(tmp_path: Path) -> None:
    group = {"queue": "team", "priorityClass": "high", "minAvailable": 1, "scheduleTimeoutSeconds": 60}
    policy = {"activeDeadlineSeconds": 3600, "suspend": True, "schedulingPolicy": group}
    spec = _convert(tmp_path, _tfjob({"runPolicy": policy})).document["spec"]
    assert spec["runPolicy"] == {"activeDeadlineSeconds": 3600, "suspend": True, "pendingTimeoutSeconds": 60}
    assert spec["scheduling"] == {"queueName": "team", "priorityClassName": "high"}


@pytest.mark.parametrize(
    ("tfjob", "expected"),
    [
        (
            _tfjob(Worker=_replica(), Evaluator=_replica()),
            "tfjob.yaml:7: spec.tfReplicaSpecs.Evaluator: an evaluator beside the workers, which jobs do not have. "
            "Let `model.fit` evaluate by validation_data; the workers do it between epochs. "
            "Or give it up: --without spec.tfReplicaSpecs.Evaluator.",
        ),
        (
            _tfjob(Chief=_replica(), Worker=_replica(_container(command=["python", "/app/worker.py"]))),
            "spec.tfReplicaSpecs.Worker: differs from Chief: script",
        ),
        (
            _tfjob(Worker=_replica(hostNetwork=True)),
            "hostNetwork: has no counterpart. Workers talk over the pods' network",
        ),
        (_tfjob(Worker=_replica(_container(resouces={}))), "resouces: unknown field. Did you mean 'resources'?"),
        (
            _tfjob({"enableDynamicWorker": True}),
            "spec.enableDynamicWorker: true. `elastic: {min, max}` in place of nodes",
        ),
        (_tfjob(Worker=_replica(volumes=[{"name": "a", "nfs": {}}])), "volumes[0]: a volume of kind nfs"),
        (_tfjob({"runPolicy": {"backoffLimit": "3"}}), "spec.runPolicy.backoffLimit"),
        ({**_tfjob(), "metadata": {"name": "Flowers_1"}}, "metadata.name: 'Flowers_1'; expected small letters"),
        ({**_tfjob(), "apiVersion": "kubeflow.org/v1alpha1"}, "apiVersion: 'kubeflow.org/v1alpha1'"),
        ({**_tfjob(), "kind": "PyTorchJob"}, "has PyTorchJob; expected a TFJob of kubeflow.org/v1. A PyTorch program"),
    ],
)
def test_what_has_no_counterpart_is_refused(tfjob: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in _refused(tmp_path, tfjob)


def test_a_second_container_is_refused_and_the_one_that_trains_is_known_by_its_name(tmp_path: Path) -> None:
    replica = _replica()
    replica["template"]["spec"]["containers"].insert(0, {"name": "logs", "image": "example/logs"})
    where = "spec.tfReplicaSpecs.Worker.template.spec.containers[0]"
    assert f"{where}: a second container" in _refused(tmp_path, _tfjob(Worker=replica))
    found = _convert(tmp_path, _tfjob(Worker=replica), without=(where,))
    assert found.document["spec"]["program"] == {"script": {"path": "train.py"}}


def test_a_replica_type_that_is_given_up_counts_no_nodes(tmp_path: Path) -> None:
    tfjob = _tfjob(Chief=_replica(), Worker=_replica(_container(command=["python", "/app/worker.py"]), replicas=3))
    spec = _convert(tmp_path, tfjob, without=("spec.tfReplicaSpecs.Worker",)).document["spec"]
    assert "nodes" not in spec
    assert spec["program"] == {"script": {"path": "train.py"}}


def test_the_mounts_of_a_volume_that_is_given_up_go_with_it(tmp_path: Path) -> None:
    container = _container(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    replica = _replica(container, volumes=[{"name": "data", "hostPath": {"path": "/data"}}])
    where = "spec.tfReplicaSpecs.Worker.template.spec.volumes[0]"
    found = _convert(tmp_path, _tfjob(Worker=replica), without=(where,))
    assert "podTemplate" not in found.document["spec"]
    assert any(each.where.endswith("volumeMounts[0]") for each in found.left_out)


def test_a_number_of_accelerators_that_no_machine_has_is_reported_at_its_request(tmp_path: Path) -> None:
    container = _container(resources={"limits": {"nvidia.com/gpu": 3}})
    selector = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    told = _refused(tmp_path, _tfjob(Worker=_replica(container, nodeSelector=selector)))
    assert "containers[0].resources.limits.nvidia.com/gpu: " in told


_GARBAGE = st.sampled_from([None, 0, -1, True, "", "x", "$(A)", [], ["x"], [None], {}, {"x": 1}, {"name": 5}, 1.5])
_PATHS = [
    ("metadata",),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec",),
    ("spec", "runPolicy"),
    ("spec", "runPolicy", "schedulingPolicy"),
    ("spec", "tfReplicaSpecs"),
    ("spec", "tfReplicaSpecs", "Worker"),
    ("spec", "tfReplicaSpecs", "Worker", "replicas"),
    ("spec", "tfReplicaSpecs", "Worker", "template"),
    ("spec", "tfReplicaSpecs", "Worker", "template", "metadata"),
    *(
        ("spec", "tfReplicaSpecs", "Worker", "template", "spec", name)
        for name in ("affinity", "containers", "initContainers", "nodeSelector", "securityContext", "volumes")
    ),
    *(
        ("spec", "tfReplicaSpecs", "Worker", "template", "spec", "containers", 0, name)
        for name in (
            "args",
            "command",
            "env",
            "envFrom",
            "image",
            "lifecycle",
            "resources",
            "volumeMounts",
            "workingDir",
        )
    ),
    ("spec", "tfReplicaSpecs", "Worker", "template", "spec", "containers", 0, "resources", "limits"),
]


@settings(max_examples=60)
@given(path=st.sampled_from(_PATHS), value=_GARBAGE)
def test_any_value_is_converted_or_refused(
    path: tuple[str | int, ...], value: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tfjob: Any = _tfjob(Worker=_replica(_container(resources={"limits": {"cpu": 1}})))
    tfjob["spec"]["runPolicy"] = {"schedulingPolicy": {}}
    place = tfjob
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    # Problem is the only exception that a user may see.
    with contextlib.suppress(Problem):
        _convert(tmp_path_factory.mktemp("any"), tfjob)


def test_only_a_refused_field_can_be_given_up(tmp_path: Path) -> None:
    assert "--without: spec.runPolicy is not refused" in _refused(tmp_path, _tfjob(), without=("spec.runPolicy",))


def test_all_mistakes_are_reported_at_once_with_lines_of_the_tfjob(tmp_path: Path) -> None:
    text = yaml.safe_dump(_tfjob({"runPolicy": {"backoffLimit": 5000}}, Worker=_replica(replicas=2000)))
    (tmp_path / "tfjob.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidJobFile) as raised:
        convert_file(tmp_path / "tfjob.yaml", Choices())
    lines = text.splitlines()
    named = {lines[(each.line or 0) - 1].strip(" -").split(":")[0] for each in raised.value.mistakes}
    assert named == {"replicas", "backoffLimit"}


def test_rules_between_fields_are_reported_with_lines_of_the_tfjob(tmp_path: Path) -> None:
    env = [{"name": "MPTRAINING_X", "value": "1"}]
    told = _refused(tmp_path, _tfjob(Worker=_replica(_container(env=env))))
    assert "spec.tfReplicaSpecs.Worker.template.spec.containers[0].env" in told
    # The line of the variable's name.
    assert "tfjob.yaml:16: " in told


def test_other_objects_beside_it_are_named(tmp_path: Path) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    path = tmp_path / "tfjob.yaml"
    path.write_text(
        yaml.safe_dump_all([claim, _tfjob(), {**_tfjob(), "metadata": {"name": "roses"}}]), encoding="utf-8"
    )
    found, beside = convert_file(path, Choices())
    assert [each.name for each in found] == ["flowers", "roses"]
    assert beside == ["line 2: PersistentVolumeClaim data is no TFJob: apply it as it is"]


def test_several_jobs_of_a_file_get_a_run_folder_each(tmp_path: Path) -> None:
    path = tmp_path / "tfjob.yaml"
    path.write_text(yaml.safe_dump_all([_tfjob(), {**_tfjob(), "metadata": {"name": "roses"}}]), encoding="utf-8")
    found, _ = convert_file(path, Choices(run_folder="gs://bucket/runs/"))
    folders = [each.document["spec"]["output"]["uri"] for each in found]
    assert folders == ["gs://bucket/runs/flowers", "gs://bucket/runs/roses"]
    alone = _convert(tmp_path, _tfjob(), run_folder="gs://bucket/runs/")
    assert alone.document["spec"]["output"]["uri"] == "gs://bucket/runs/"
