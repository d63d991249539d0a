"""Runtimes of the platform's owner: the job over the runtime over `default`, and a reason for each choice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mptraining_api.admin_limits import JobLimits
from mptraining_api.limit_rules import check_limits
from mptraining_api.problems import InvalidSpec, OutsideLimits
from mptraining_api.resolve.attempt import machines
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_api.resolve.runtimes import complete
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from tests.fakes import with_image

TEAM = Runtime.parse(
    {
        "podTemplate": {
            "env": [{"name": "A", "value": "runtime"}, {"name": "B", "value": "runtime"}],
            "nodeSelector": {"pool": "shared", "disk": "ssd"},
            "tolerations": [{"key": "shared", "operator": "Exists"}],
            "resources": {"requests": {"cpu": "4", "memory": "8Gi"}},
            "serviceAccountName": "trainer",
            "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
        },
        "images": {"gpu": "registry.example/gpu:1"},
        "provisioning": "Spot",
        "output": "gs://team/runs",
        "limits": {"workersPerJob": 2, "registries": ["registry.example"]},
    }
)
CLUSTER = ClusterSettings(
    runtimes={
        **with_image("ours:1", output="gs://all", httpProxy="http://proxy:1", caConfigMap="authorities"),
        "team-default": TEAM,
        "plain": Runtime(),
    },
    default_runtimes={"team-a": "team-default"},
)

RUNTIMES = CLUSTER.runtimes or {}


def job(namespace: str = "team-b", **spec: Any) -> MPTrainingJob:
    document = {
        "accelerator": {"type": "t4"},
        "program": {"application": {"name": "cnn", "classes": 2}},
        "data": {"train": ["gs://bucket/train"]},
        **spec,
    }
    return MPTrainingJob.parse({"metadata": {"name": "flowers", "namespace": namespace}, "spec": document})


def resolved(namespace: str = "team-b", settings: ClusterSettings = CLUSTER, **spec: Any) -> ResolvedJob:
    return resolve(job(namespace, **spec), settings)


def reasons(found: ResolvedJob) -> dict[str, str]:
    return {choice.field: choice.because for choice in found.choices}


def test_a_runtime_decides_what_the_job_does_not_say() -> None:
    found = resolved(runtime="team-default")
    assert found.image == "registry.example/gpu:1"
    assert found.accelerator.provisioning == "Spot"
    assert found.output == "gs://team/runs/team-b/flowers"
    assert (found.runtime, found.pod_template) == ("team-default", TEAM.pod_template)
    said = reasons(found)
    assert said["spec.runtime"] == "given in the job"
    for field in ("podTemplate.env", "podTemplate.image", "accelerator.provisioning", "output.uri"):
        assert said[f"spec.{field}"] == "from the runtime team-default"


def test_the_image_of_a_runtime_may_have_kernels_that_the_trainer_s_images_lack() -> None:
    blackwell = {"type": "b200", "provisioning": "OnDemand"}
    assert resolved(runtime="team-default", accelerator=blackwell).image == "registry.example/gpu:1"
    with pytest.raises(InvalidSpec, match=r"no kernels for its compute capability 10\.0"):
        resolved(runtime="plain", accelerator=blackwell)


def test_the_job_has_precedence_over_its_runtime() -> None:
    own = {
        "image": "mine:1",
        "env": [{"name": "B", "value": "job"}, {"name": "C", "value": "job"}],
        "nodeSelector": {"disk": "hdd"},
        "tolerations": [{"key": "mine", "operator": "Exists"}],
        "resources": {"requests": {"cpu": "8"}, "limits": {"memory": "9Gi"}},
        "serviceAccountName": "mine",
        "initContainers": [{"name": "proxy", "image": "proxy:2", "restartPolicy": "Always"}],
    }
    accelerator = {"type": "t4", "provisioning": "OnDemand"}
    output = {"uri": "gs://mine/run"}
    found = resolved(runtime="team-default", podTemplate=own, accelerator=accelerator, output=output)
    assert (found.image, found.accelerator.provisioning, found.output) == ("mine:1", "OnDemand", "gs://mine/run")
    assert found.pod_template.to_document() == {
        "image": "mine:1",
        "env": [{"name": "A", "value": "runtime"}, {"name": "B", "value": "job"}, {"name": "C", "value": "job"}],
        "nodeSelector": {"pool": "shared", "disk": "hdd"},
        "tolerations": [{"key": "shared", "operator": "Exists"}, {"key": "mine", "operator": "Exists"}],
        "resources": {"requests": {"cpu": "8", "memory": "8Gi"}, "limits": {"memory": "9Gi"}},
        "serviceAccountName": "mine",
        "initContainers": [{"name": "proxy", "image": "proxy:2", "restartPolicy": "Always"}],
    }
    assert reasons(found)["spec.podTemplate.env"] == "from the runtime team-default, with the job's own"
    assert "spec.podTemplate.serviceAccountName" not in reasons(found)


def test_of_an_affinity_each_kind_is_the_jobs_if_it_has_one() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"

    def on(disk: str) -> dict[str, Any]:
        terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": [disk]}]}]
        return {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}

    apart = {"podAntiAffinity": {required: [{"topologyKey": "host", "labelSelector": {}}]}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    others = [{**spread, "topologyKey": "rack"}, {**spread, "whenUnsatisfiable": "DoNotSchedule"}]
    runtime = {"affinity": on("ssd") | apart, "topologySpreadConstraints": [spread, *others]}
    own = {"affinity": on("hdd"), "topologySpreadConstraints": [{**spread, "maxSkew": 2}]}
    settings = dataclasses.replace(CLUSTER, runtimes={"placed": Runtime.parse({"podTemplate": runtime})})
    found = resolved(settings=settings, runtime="placed", podTemplate=own)
    assert found.pod_template.to_document() == {
        "affinity": on("hdd") | apart,
        "topologySpreadConstraints": [*others, {**spread, "maxSkew": 2}],
    }


def test_a_runtime_overrides_default_field_by_field() -> None:
    found = resolved("team-b")
    assert (found.image, found.output, found.runtime) == ("ours:1", "gs://all/team-b/flowers", None)
    for field in ("podTemplate.image", "output.uri"):
        assert reasons(found)[f"spec.{field}"] == "from the runtime default"
    pods = Runtime.parse({"podTemplate": {"labels": {"a": "d", "b": "d"}}, "provisioning": "Spot", "caKey": "root.pem"})
    own = Runtime.parse({"podTemplate": {"labels": {"b": "own"}}, "images": {"gpu": "own:1"}, "caConfigMap": "mine"})
    runtimes = {"default": pods, "own": own}
    settings = ClusterSettings(runtimes=runtimes)
    chosen, default = resolved(settings=settings, runtime="own"), resolved(settings=settings)
    assert chosen.pod_template.labels == {"a": "d", "b": "own"}
    assert (chosen.image, chosen.accelerator.provisioning) == ("own:1", "Spot")
    assert reasons(chosen)["spec.accelerator.provisioning"] == "from the runtime default"
    assert reasons(chosen)["spec.podTemplate.labels"] == "from the runtime own"
    assert (default.runtime, default.pod_template.labels) == (None, {"a": "d", "b": "d"})
    assert (complete(runtimes, "own").ca_config_map, complete(runtimes, "own").ca_key) == ("mine", "root.pem")


def test_a_namespace_has_a_runtime_unless_the_job_names_another_or_none() -> None:
    assert reasons(resolved("team-a"))["spec.runtime"] == "of the namespace 'team-a'"
    assert resolved("team-a").output == "gs://team/runs/team-a/flowers"
    plain = resolved("team-a", runtime="plain")
    assert (plain.image, plain.output) == ("ours:1", "gs://all/team-a/flowers")
    none = resolved("team-a", runtime="None")
    assert none.runtime is None
    assert "spec.runtime" not in reasons(none)
    assert resolved("team-b").runtime is None


def test_an_unknown_runtime_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        InvalidSpec, match=r"spec\.runtime: 'team-defualt' is no .* expected one of default, plain, team-def"
    ):
        resolved(runtime="team-defualt")
    with pytest.raises(InvalidSpec, match="expected one of default"):
        resolved(runtime="plain", settings=ClusterSettings(runtimes={}))


def test_without_a_cluster_a_runtime_is_taken_and_reported_as_unknown() -> None:
    found = resolved(runtime="team-default", settings=ClusterSettings())
    assert found.runtime is None
    assert reasons(found)["spec.runtime"].startswith("known to the cluster only")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "hostPath and others"),
        ({"env": [{"name": "MPTRAINING_JOB_FILE", "value": "a"}]}, "which the launch sets"),
    ],
)
def test_a_runtime_keeps_the_rules_of_a_job(template: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        Runtime.parse({"podTemplate": template})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"workers": 3}, r"3 workers are more than runtimes\.team-default\.limits\.workersPerJob"),
        ({"podTemplate": {"image": "other.example/a"}}, r"outside runtimes\.team-default\.limits\.registries"),
        ({"podTemplate": {"initContainers": [{"name": "a", "image": "other.example/a"}]}},
         r"spec\.podTemplate\.initContainers\[0\]\.image: .*outside runtimes\.team-default"),
    ],
)  # fmt: skip
def test_the_limits_of_a_runtime_only_narrow(spec: dict[str, Any], message: str) -> None:
    plain = job(runtime="plain", **spec)
    check_limits(plain, resolve(plain, CLUSTER), RUNTIMES)
    written = job(runtime="team-default", **spec)
    with pytest.raises(OutsideLimits, match=message):
        check_limits(written, resolve(written, CLUSTER), RUNTIMES)


def test_the_limits_of_default_hold_beside_those_of_a_runtime_whose_images_are_the_owner_s_choice() -> None:
    written = job(runtime="team-default", workers=2)
    found = resolve(written, CLUSTER)
    check_limits(written, found, RUNTIMES)
    narrow = Runtime(limits=JobLimits(workers_per_job=1))
    with pytest.raises(OutsideLimits, match=r"2 workers are more than runtimes\.default\.limits\.workersPerJob"):
        check_limits(written, found, {**RUNTIMES, "default": narrow})
    elsewhere = Runtime(limits=JobLimits(registries=("elsewhere.example",)))
    check_limits(written, found, {**RUNTIMES, "default": elsewhere}, operator_account="operator")
    with pytest.raises(OutsideLimits, match=r"serviceAccountName: 'trainer' is the operator's own"):
        check_limits(written, found, RUNTIMES, operator_account="trainer")


def test_the_provisioning_of_a_runtime_is_that_of_each_machine_that_leaves_it_open() -> None:
    machine = {
        "type": "l4",
        "alternatives": [{"type": "t4"}, {"type": "v100", "provisioning": "OnDemand"}],
    }
    found = resolved(runtime="team-default", accelerator=machine)
    kinds = [each.accelerator.provisioning for each in machines(found)]
    assert kinds == ["Spot", "Spot", "OnDemand"]


def test_a_slice_is_no_device_of_a_class() -> None:
    settings = dataclasses.replace(CLUSTER, device_classes={"a100": "gpu.example.com"})
    whole = resolved(settings=settings, accelerator={"type": "a100"})
    part = resolved(settings=settings, accelerator={"type": "a100", "partition": "1g.5gb"})
    assert (whole.placement.device_class, whole.placement.resources) == ("gpu.example.com", {})
    assert part.placement.device_class is None
    assert part.placement.resources
