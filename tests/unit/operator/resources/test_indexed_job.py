"""The Indexed Job of an attempt: the origin of its fields, and refusals. The whole object is in
tests/golden/children.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from mptraining_api import launch
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner, claim_template
from tests.fakes import with_image

OWNER = Owner(namespace="team-a", name="flowers", uid="uid-1", created="2026-11-23T10:00:00Z")
CLUSTER = ClusterSettings(runtimes=with_image("mptraining/trainer:test"))
SETTINGS = PodSettings(grace_seconds=45)


def parsed(**spec: Any) -> MPTrainingJob:
    document = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "cnn", "classes": 2}},
        "data": {"train": ["gs://bucket/train"]},
        **spec,
    }
    return MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": document})


def built(
    *, attempt: int = 1, settings: PodSettings = SETTINGS, cluster: ClusterSettings = CLUSTER, **spec: Any
) -> dict[str, Any]:
    job = parsed(**spec)
    return indexed_job(OWNER, resolve(job, cluster), attempt=attempt, settings=settings)


def pod(**spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = built(**spec)["spec"]["template"]["spec"]
    return template


ARCHIVE = {"archive": {"uri": "gs://bucket/code.tgz", "sha256": "0" * 64}}
REQUIREMENTS = {"configMap": {"name": "code"}, "requirements": "requirements.txt"}


def trainer(**spec: Any) -> dict[str, Any]:
    (container,) = pod(**spec)["containers"]
    return dict(container)


def environment(container: dict[str, Any]) -> dict[str, Any]:
    names = [each["name"] for each in container["env"]]
    assert len(names) == len(set(names)), "a server-side apply refuses a name that stands twice"
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_attempts_differ_in_name_label_and_hosts() -> None:
    first, second = built(workers=2), built(workers=2, attempt=2)
    assert [each["metadata"]["name"] for each in (first, second)] == ["flowers-1", "flowers-2"]
    assert second["spec"]["template"]["metadata"]["labels"]["mptraining.dev/attempt"] == "2"
    (container,) = second["spec"]["template"]["spec"]["containers"]
    hosts = environment(container)[launch.HOSTS].split(",")
    assert hosts == [f"flowers-2-{index}.mptraining-workers.team-a.svc:2222" for index in (0, 1)]


def test_the_same_job_gives_the_same_text_and_shares_nothing() -> None:
    template = {"env": [{"name": "A", "value": "1"}], "labels": {"team": "a"}}
    job = parsed(podTemplate=template)
    spec = job.spec
    before = copy.deepcopy(spec)
    first, second = (indexed_job(OWNER, resolve(job, CLUSTER), attempt=1, settings=SETTINGS) for _ in range(2))
    assert first == second
    first["spec"]["template"]["spec"]["securityContext"].clear()
    first["spec"]["template"]["spec"]["containers"][0]["env"][-1]["value"] = "2"
    assert spec == before
    assert second == indexed_job(OWNER, resolve(job, CLUSTER), attempt=1, settings=SETTINGS)


def test_the_token_of_the_kubernetes_api_is_for_jobs_that_name_an_account() -> None:
    found = pod(podTemplate={"serviceAccountName": "trainer"})
    assert found["serviceAccountName"] == "trainer"
    # The pod's field would override the account's.
    assert "automountServiceAccountToken" not in found
    assert pod()["automountServiceAccountToken"] is False


def test_the_end_of_the_log_of_a_job_with_secrets_does_not_go_into_its_status() -> None:
    """The termination message would contain it, which the operator reads."""
    assert trainer()["terminationMessagePolicy"] == "FallbackToLogsOnError"
    secret = {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
    found = pod(podTemplate=secret, source=ARCHIVE)
    for container in (*found["containers"], *found["initContainers"]):
        assert container["terminationMessagePolicy"] == "File"
        assert environment(container)[launch.SECRET_VARIABLES] == "TOKEN"


@pytest.mark.parametrize(("kind", "void"), [("cpu", True), ("t4", False)])
def test_a_pod_sees_no_gpu_of_another(kind: str, void: bool) -> None:
    """NVIDIA's images request all GPUs of the machine, and get them where NVIDIA's runtime is the default."""
    found = pod(accelerator={"type": kind}, source=ARCHIVE)
    (container,), (init,) = found["containers"], found["initContainers"]
    # With GPUs of its own, the device plugin's value is kept.
    assert environment(container).get("NVIDIA_VISIBLE_DEVICES") == ("void" if void else None)
    assert environment(init)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("h100", None, {"requests": {"cpu": "145600m", "memory": "1123Gi", "nvidia.com/gpu": 8}}),
        # A limit is the request, too: the default may be above it.
        ("h100", {"requests": {"cpu": "12"}, "limits": {"memory": "200Gi"}},
         {"requests": {"cpu": "12", "nvidia.com/gpu": 8}}),
        ("cpu", None, {"requests": {"cpu": "250m", "memory": "512Mi"}}),
        ("cpu", {"requests": {"cpu": 4}}, {"requests": {"cpu": 4, "memory": "512Mi"}}),
        ("cpu", {"limits": {"memory": "256Mi"}}, {"requests": {"cpu": "250m"}, "limits": {"memory": "256Mi"}}),
    ],
)  # fmt: skip
def test_the_default_requests_fit_the_machine_and_the_job_s_own_win(
    kind: str, given: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    accelerator = {"type": "h100", "countPerWorker": 8} if kind == "h100" else {"type": "cpu"}
    found = trainer(accelerator=accelerator, podTemplate={"resources": given})["resources"]
    assert {name: found[name] for name in expected} == expected


def test_packed_workers_prefer_the_nearest_place() -> None:
    packed = pod(accelerator={"type": "l4"}, workers=2, scheduling={"topology": "Pack"})
    first, *_ = packed["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first["podAffinityTerm"]["topologyKey"] == "cloud.google.com/gce-topology-subblock"
    assert "affinity" not in pod(accelerator={"type": "l4"}, workers=2)


def test_the_source_is_prepared_without_the_accelerator() -> None:
    template = {"resources": {"limits": {"cpu": 8, "memory": "32Gi"}}}
    found = pod(accelerator={"type": "l4"}, source=ARCHIVE, podTemplate=template)
    assert found["initContainers"][0]["resources"] == {"requests": {}, "limits": {"cpu": 8, "memory": "32Gi"}}


def test_a_default_gives_way_to_the_job_s_own_variable() -> None:
    found = environment(trainer(podTemplate={"env": [{"name": "TF_CPP_MIN_LOG_LEVEL", "value": "0"}]}))
    assert found["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert found["HOME"] == "/tmp"
    assert found[launch.INCARNATION] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert found[launch.TERMINATION_LOG] == "/dev/termination-log"


def test_a_proxy_of_the_job_s_own_is_not_used_between_two_workers() -> None:
    own = {"env": [{"name": "https_proxy", "value": "http://proxy"}, {"name": "no_grpc_proxy", "value": "other"}]}
    found = environment(trainer(workers=2, podTemplate=own))
    assert found["https_proxy"] == "http://proxy"
    assert found["no_grpc_proxy"] == "mptraining-workers.team-a.svc"
    assert environment(trainer(podTemplate=own))["no_grpc_proxy"] == "other"


def test_a_path_of_python_from_elsewhere_cannot_be_joined() -> None:
    elsewhere = {"name": "PYTHONPATH", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    with pytest.raises(InvalidSpec, match=r"spec\.podTemplate\.env\[0\]: PYTHONPATH from elsewhere"):
        pod(source=REQUIREMENTS, podTemplate={"env": [elsewhere]})


def test_a_platform_that_assigns_users_gets_pods_without_one() -> None:
    """OpenShift's restricted-v2 refuses a uid, a gid and an fsGroup outside the namespace's range."""
    settings = dataclasses.replace(SETTINGS, platform_user=True)
    security = built(settings=settings)["spec"]["template"]["spec"]["securityContext"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & security.keys()
    assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})


def test_without_an_endpoint_no_progress_is_reported() -> None:
    found = pod()
    assert launch.PROGRESS_URL not in environment(found["containers"][0])
    assert not any("projected" in each for each in found["volumes"])


def test_a_volume_may_not_have_a_name_of_ours_and_a_job_needs_an_image() -> None:
    template = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "mptraining-tmp", "emptyDir": {}}]}
    with pytest.raises(InvalidSpec, match=r"spec\.podTemplate\.volumes\[1\]\.name: 'mptraining-tmp'"):
        pod(podTemplate=template)
    with pytest.raises(InvalidSpec, match=r"spec\.podTemplate\.image: no image"):
        pod(cluster=ClusterSettings())


@pytest.mark.parametrize("path", ["//tmp", "/dev", "/", "/source/files"])
def test_a_mount_may_not_take_the_place_of_ours(path: str) -> None:
    source = {"configMap": {"name": "code"}}
    mount = {"name": "data", "mountPath": path}
    template = {"volumes": [{"name": "data", "emptyDir": {}}], "volumeMounts": [mount]}
    with pytest.raises(InvalidSpec, match=r"spec\.podTemplate\.volumeMounts\[0\]\.mountPath: .*operator's /"):
        pod(source=source, podTemplate=template)


def test_a_job_overrides_the_settings_defaults_for_pods() -> None:
    runtime = Runtime(
        ca_config_map="corporate",
        ca_key="root.pem",
        priority_class_name="batch",
        https_proxy="http://proxy:3128",
        no_proxy="internal.example",
    )
    settings = PodSettings(runtime=runtime)
    program = {"function": {"entryPoint": "m:build"}}
    job = built(settings=settings, source=REQUIREMENTS, program=program, training={"epochs": 1})
    spec = job["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "batch"
    for container in (*spec["initContainers"], *spec["containers"]):
        found = environment(container)
        assert found["HTTPS_PROXY"] == found["https_proxy"] == "http://proxy:3128"
        assert found["no_proxy"].endswith("metadata.google.internal,169.254.169.254,internal.example")
        assert "HTTP_PROXY" not in found
        assert found["SSL_CERT_FILE"] == found["REQUESTS_CA_BUNDLE"] == "/etc/mptraining-ca/root.pem"
        assert {"name": "mptraining-ca", "mountPath": "/etc/mptraining-ca", "readOnly": True} in container[
            "volumeMounts"
        ]
    assert {"name": "mptraining-ca", "configMap": {"name": "corporate"}} in spec["volumes"]
    # A job's own variable of that name overrides it.
    theirs = {"env": [{"name": "https_proxy", "value": "http://mine"}]}
    spec = built(settings=settings, podTemplate=theirs, scheduling={"priorityClassName": "high"})["spec"]["template"][
        "spec"
    ]
    assert environment(spec["containers"][0])["https_proxy"] == "http://mine"
    assert spec["priorityClassName"] == "high"


def test_containers_of_the_job_s_own_are_secured_as_the_trainer_and_start_before_the_source() -> None:
    sidecar = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}]}
    found = pod(source=REQUIREMENTS, podTemplate={"initContainers": [sidecar]})
    assert [each["name"] for each in found["initContainers"]] == ["proxy", "source"]
    proxy = found["initContainers"][0]
    assert proxy["securityContext"] == found["containers"][0]["securityContext"]
    assert proxy["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "A", "value": "b"}]
    assert proxy["resources"] == {"requests": {"cpu": "50m", "memory": "64Mi"}}
    assert not any("mptraining-" in str(mount) for mount in proxy.get("volumeMounts", ()))


def test_a_spread_of_the_job_s_own_counts_the_pods_of_the_attempt_and_replaces_ours() -> None:
    zone = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    host = {"maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    both = pod(workers=2, podTemplate={"topologySpreadConstraints": [zone]})["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in both] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert both[0]["labelSelector"] == both[1]["labelSelector"]
    (own,) = pod(workers=2, podTemplate={"topologySpreadConstraints": [host]})["topologySpreadConstraints"]
    assert own["maxSkew"] == 2
    other = {**zone, "labelSelector": {"matchLabels": {"app": "a"}}}
    (one,) = pod(podTemplate={"topologySpreadConstraints": [other]})["topologySpreadConstraints"]
    assert one == other


def test_a_changed_number_of_checkpoints_reaches_the_next_attempt_and_leaves_the_frozen_job() -> None:
    frozen = resolve(parsed(checkpoint={"everySteps": 10, "maxToKeep": 3}), CLUSTER)

    def kept(max_to_keep: int | None) -> str | None:
        built = indexed_job(OWNER, frozen, attempt=2, settings=SETTINGS, max_to_keep=max_to_keep)
        found: str | None = environment(built["spec"]["template"]["spec"]["containers"][0]).get(launch.MAX_TO_KEEP)
        return found

    assert [kept(number) for number in (None, 3, 9)] == [None, None, "9"]
    assert launch.with_current_fields(frozen, {launch.MAX_TO_KEEP: "9"}).checkpoint.max_to_keep == 9
    assert launch.with_current_fields(frozen, {}) == frozen
    with pytest.raises(InvalidSpec, match="MPTRAINING_MAX_TO_KEEP"):
        launch.with_current_fields(frozen, {launch.MAX_TO_KEEP: "0"})


def test_a_runtime_is_frozen_with_the_first_attempt_and_hidden_from_the_run_folder() -> None:
    runtime = Runtime.parse({"podTemplate": {"env": [{"name": "TEAM", "value": "a"}]}})
    job = parsed(runtime="team", podTemplate={"env": [{"name": "OWN", "value": "b"}]})
    frozen = resolve(job, dataclasses.replace(CLUSTER, runtimes={**(CLUSTER.runtimes or {}), "team": runtime}))
    # The settings have no such runtime any more.
    read = ResolvedJob.read(frozen.to_json())
    found = indexed_job(OWNER, read, attempt=2, settings=SETTINGS)["spec"]["template"]["spec"]
    variables = environment(found["containers"][0])
    assert (variables["TEAM"], variables["OWN"]) == ("a", "b")
    worker = launch.with_current_fields(frozen, {})
    assert (worker.runtime, worker.pod_template) == ("team", None)


def test_gpus_of_a_device_class_are_claimed_and_others_are_a_resource() -> None:
    cluster = ClusterSettings(runtimes=with_image("trainer"), device_classes={"t4": "t4.example.com"})
    t4 = built(cluster=cluster, accelerator={"type": "t4", "countPerWorker": 4, "provisioning": "Spot"})
    spec = t4["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    template = claim_template(OWNER, "t4.example.com", 4)
    claim = {"name": "accelerators", "resourceClaimTemplateName": template["metadata"]["name"]}
    assert spec["resourceClaims"] == [claim]
    assert container["resources"]["claims"] == [{"name": "accelerators"}]
    assert "limits" not in container["resources"]
    # The class selects the devices: the machine needs no label with the name of its GPU.
    assert spec["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert (request["exactly"]["deviceClassName"], request["exactly"]["count"]) == ("t4.example.com", 4)
    assert claim_template(OWNER, "t4.example.com", 2)["metadata"]["name"] != template["metadata"]["name"]

    v100 = built(cluster=cluster, accelerator={"type": "v100"})["spec"]["template"]["spec"]
    assert "resourceClaims" not in v100
    assert v100["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
