"""The threat model of docs/security.md against a real API server: its admission, its RBAC, its Pod Security.

Most requests come from a user who may create MPTrainingJobs and ConfigMaps in one namespace, and nothing else: the
rights that `mptj submit` needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mptraining_api.launch import SECRET_VARIABLES
from tests.testbed import Exit, Refused, Rest, Run
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM

STRICT = {"fieldValidation": "Strict"}
JOBS = "mptraining.dev/v1alpha1"


@pytest.fixture
def user(ns: Any) -> Rest:
    """A user who may create and read MPTrainingJobs and ConfigMaps in the shared namespace."""
    rules = [
        {"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list", "watch"]},
    ]
    token = ns.control_plane.service_account(ns.namespace, "data-scientist", rules=rules)
    rest: Rest = ns.control_plane.rest_client(token)
    return rest


@pytest.fixture(scope="module")
def restricted(installed: Any, new_namespace: Any) -> Iterator[Any]:
    """A namespace that admits only restricted pods, with an operator that logs at DEBUG."""
    ns = new_namespace(installed, "restricted-life", logLevel="DEBUG")
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    ns.rest.patch(f"/api/v1/namespaces/{ns.namespace}", level)
    ns.with_kubelet()
    try:
        ns.operator()
        yield ns
    finally:
        ns.close()


def refusal(ns: Any, rest: Rest, spec: dict[str, Any], query: dict[str, str] = STRICT) -> str:
    """Return the API server's message about a job with these sections, as a dry run; empty when it accepts the job."""
    try:
        rest.post(ns.jobs, ns.document("asked", **spec), {**query, "dryRun": "All"})
    except Refused as refused:
        return refused.message
    return ""


PRIVILEGES: dict[str, Any] = {
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "hostUsers": True,
    "shareProcessNamespace": True,
    "automountServiceAccountToken": True,
    "securityContext": {
        "privileged": True,
        "procMount": "Unmasked",
        "runAsUser": 0,
        "capabilities": {"add": ["SYS_ADMIN"]},
        "seccompProfile": {"type": "Unconfined"},
    },
    "containers": [{"name": "a", "image": "b"}],
    "ephemeralContainers": [{"name": "a", "image": "b"}],
    "command": ["sh"],
    "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["a"]}],
    "ports": [{"containerPort": 80, "hostPort": 80}],
    "volumeDevices": [{"name": "a", "devicePath": "/dev/sda"}],
}


def test_no_field_that_gives_privileges_is_taken(ns: Any, user: Rest) -> None:
    for field, value in PRIVILEGES.items():
        assert f'unknown field "spec.podTemplate.{field}"' in refusal(ns, user, {"podTemplate": {field: value}})
    assert "expected no mptraining.dev/*" in refusal(
        ns, user, {"podTemplate": {"labels": {"mptraining.dev/job-uid": "another"}}}
    )


def test_a_volume_of_the_host_is_refused_without_field_validation_too(restricted: Any) -> None:
    """By the operator, before there is a pod: the resource has no schema of volumes."""
    volumes = [{"name": "a", "hostPath": {"path": "/"}}]
    body = restricted.document("host", workers=1, podTemplate={"volumes": volumes})
    restricted.rest.post(restricted.jobs, body, {"fieldValidation": "Ignore"})
    restricted.phase("host", "Failed")
    failed = next(each for each in restricted.get("host")["status"]["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "spec.podTemplate.volumes[0]: " in failed["message"]
    assert restricted.batch_jobs("host") == []


def test_no_field_of_an_init_container_that_gives_privileges_reaches_a_pod(restricted: Any) -> None:
    """The resource has no schema of them: the operator refuses what `mptj check` refuses."""
    for number, field in enumerate(("securityContext", "ports", "volumeDevices", "livenessProbe", "resizePolicy")):
        sidecar = {"name": "a", "image": "b", "restartPolicy": "Always", field: PRIVILEGES.get(field, {})}
        name = f"sidecar-{number}"
        restricted.rest.post(
            restricted.jobs, restricted.document(name, workers=1, podTemplate={"initContainers": [sidecar]})
        )
        restricted.phase(name, "Failed")
        failed = next(each for each in restricted.get(name)["status"]["conditions"] if each["type"] == "Failed")
        assert f"spec.podTemplate.initContainers[0].{field}: unknown field" in failed["message"]
        assert restricted.batch_jobs(name) == []


def test_fields_without_validation_do_not_reach_the_pods(restricted: Any) -> None:
    """One job has all of these fields, and field validation is off."""
    body = restricted.document("sly", workers=1, podTemplate=PRIVILEGES)
    restricted.scripts["sly"] = lambda pod: Exit(0)
    restricted.rest.post(restricted.jobs, body, {"fieldValidation": "Ignore"})
    restricted.phase("sly", "Succeeded")
    assert restricted.get("sly")["spec"]["podTemplate"] == {}
    (batch,) = restricted.batch_jobs("sly")
    spec = batch["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "runtimeClassName"} & set(spec)
    assert spec["automountServiceAccountToken"] is False
    assert [each["name"] for each in spec["containers"]] == ["trainer"]
    assert spec["containers"][0]["command"] == ["python", "-m", "mptraining_trainer", "train"]


# Another namespace.


def test_a_reference_into_another_namespace_leads_nowhere(ns: Any, user: Rest) -> None:
    """Kubernetes' own objects in a podTemplate have no namespace: the API server refuses the field in the first Job."""
    other = ns.control_plane.namespace("others-secrets")
    ns.rest.post(f"/api/v1/namespaces/{other}/secrets", {"metadata": {"name": "theirs"}, "stringData": {"k": "v"}})
    reference = {"name": "theirs", "key": "k", "namespace": other}
    template = {
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}],
        "envFrom": [{"configMapRef": {"name": "theirs", "namespace": other}}],
        "volumes": [
            {"name": "a", "secret": {"secretName": "theirs", "namespace": other}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "theirs", "namespace": other}},
        ],
        "imagePullSecrets": [{"name": "theirs", "namespace": other}],
    }
    ns.scripts["abroad"] = lambda pod: Run()
    user.post(ns.jobs, ns.document("abroad", workers=1, podTemplate=template))
    ns.phase("abroad", "Failed")
    failed = ns.condition("abroad", "Failed")
    assert (failed["reason"], ns.batch_jobs("abroad")) == ("InvalidSpec", [])
    for field in ("secretKeyRef", "configMapRef", "secret", "persistentVolumeClaim", "imagePullSecrets[0]"):
        assert f'{field}.namespace"' in failed["message"]
    # The job's own sections that name objects have no such field either.
    said = refusal(ns, user, {"source": {"configMap": {"name": "a", "namespace": other}}})
    assert 'unknown field "spec.source.configMap.namespace"' in said
    ns.delete("abroad")
    path = f"/apis/{JOBS}/namespaces/{other}/mptrainingjobs"
    with pytest.raises(Refused, match="forbidden"):
        user.post(path, ns.document("abroad"))


# The operator's identity, and the objects that it has written.


def test_no_user_writes_a_status(ns: Any, user: Rest) -> None:
    body = {**ns.document("honest"), "status": {"phase": "Succeeded", "jobDigest": "0" * 64}}
    ns.scripts["honest"] = lambda pod: Run()
    user.post(ns.jobs, body)
    status = ns.running("honest")
    with pytest.raises(Refused, match="forbidden"):
        user.patch(f"{ns.jobs}/honest/status", {"status": {"phase": "Succeeded"}})
    user.patch(f"{ns.jobs}/honest", {"status": {"phase": "Succeeded", "jobDigest": None}})
    assert ns.status("honest")["phase"] == "Running"
    assert ns.status("honest")["jobDigest"] == status["jobDigest"] != "0" * 64


def frozen_text(ns: Any, name: str) -> str:
    """Return the text of the job's frozen job."""
    return str(ns.child("configmaps", f"{name}-job")["data"]["job.json"])


def test_a_replaced_frozen_job_is_not_trained(alone: Any) -> None:
    """A frozen job contains image, workers and number of pods: a forged one would exceed every limit of the
    administrator. The operator reads the ConfigMap after a restart.
    """
    first = alone.operator()
    alone.create("kept", lambda pod: Run())
    alone.running("kept")
    text = frozen_text(alone, "kept")
    alone.patch("kept", {"spec": {"runPolicy": {"suspend": True}}})
    alone.phase("kept", "Suspended")
    kept = alone.child("configmaps", "kept-job")
    assert (kept["immutable"], kept["data"]) == (True, {"job.json": text})
    alone.wait(lambda: alone.batch_jobs("kept"), lambda jobs: not jobs)
    first.stop()
    alone.patch("kept", {"spec": {"runPolicy": {"suspend": False}}})
    config_maps = f"/api/v1/namespaces/{alone.namespace}/configmaps"
    alone.rest.delete(f"{config_maps}/kept-job")
    metadata = {name: kept["metadata"][name] for name in ("name", "labels", "ownerReferences")}
    forged = {"job.json": text.replace("mptraining/trainer:test", "evil.org/miner:1")}
    alone.rest.post(config_maps, {"metadata": metadata, "immutable": True, "data": forged})
    alone.operator()
    told = "\n".join(alone.wait_for_event("kept", "OperatorProblem"))
    assert "ConfigMap kept-job: job.json does not match status.jobDigest. Delete the ConfigMap" in told
    assert alone.batch_jobs("kept") == []
    # The fix that the message names: the job is resolved again.
    alone.rest.delete(f"{config_maps}/kept-job")
    alone.running("kept", attempt=2)
    (batch,) = alone.batch_jobs("kept")
    assert batch["spec"]["template"]["spec"]["containers"][0]["image"] == "mptraining/trainer:test"


def test_a_spec_that_is_edited_a_second_after_it_was_applied_changes_no_attempt(ns: Any, user: Rest) -> None:
    """The spec is fixed before the first child exists."""
    template = {"serviceAccountName": "default", "env": [{"name": "LEVEL", "value": "reviewed"}]}
    ns.create("edited", lambda pod: Run(), podTemplate=template)
    ns.wait(lambda: ns.batch_jobs("edited"), lambda jobs: jobs)
    changes: tuple[dict[str, Any], ...] = (
        {"podTemplate": {"serviceAccountName": "reviewed"}},
        {"podTemplate": {"env": [{"name": "LEVEL", "value": "edited"}]}},
        {"workers": 1},
    )
    for change in changes:
        with pytest.raises(Refused, match="after the job has started"):
            user.patch(f"{ns.jobs}/edited", {"spec": change})
    ns.running("edited")
    ns.end("edited-1", Exit(75))
    ns.running("edited", attempt=2)
    first, second = ns.batch_jobs("edited")
    for batch_job in (first, second):
        pod = batch_job["spec"]["template"]["spec"]
        assert (batch_job["spec"]["parallelism"], pod["serviceAccountName"]) == (2, "default")
        assert {"name": "LEVEL", "value": "reviewed"} in pod["containers"][0]["env"]


# The pods of others.


def test_a_quota_keeps_jobs_from_repelling_the_pods_of_other_namespaces(restricted: Any) -> None:
    """The scheduler honours a required anti-affinity also when it places the other pods: it keeps a machine for one."""
    terms = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    scope = {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}
    quota = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
    path = f"/api/v1/namespaces/{restricted.namespace}/resourcequotas"
    restricted.rest.post(path, {"metadata": {"name": "own-pods"}, "spec": quota})
    restricted.wait(lambda: restricted.rest.get(f"{path}/own-pods").get("status", {}).get("hard"), lambda hard: hard)
    for name, reach in (("alone", {"namespaceSelector": {}}), ("apart", {})):
        affinity = {"podAntiAffinity": {required: [{**terms, **reach}]}}
        restricted.create(name, workers=1, podTemplate={"affinity": affinity})
    assert "exceeded quota: own-pods" in restricted.waits("alone", "PodsRefused")
    restricted.phase("apart", "Running")
    restricted.rest.delete(f"{path}/own-pods")
    for name in ("alone", "apart"):
        restricted.delete(name)


# Secrets.


def test_no_secret_is_in_status_events_logs_or_the_frozen_job(restricted: Any) -> None:
    """The operator may not read Secrets and logs no variable: neither at DEBUG, nor when a pod fails."""
    plain, secret = "plain-0123456789", "secret-0123456789"
    path = f"/api/v1/namespaces/{restricted.namespace}/secrets"
    restricted.rest.post(path, {"metadata": {"name": "password"}, "stringData": {"p": secret}})
    template = {
        "env": [
            {"name": "PLAIN", "value": plain},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "password", "key": "p"}}},
        ]
    }
    restricted.create("discreet", lambda pod: Exit(1), workers=1, podTemplate=template, runPolicy={"backoffLimit": 1})
    restricted.phase("discreet", "Failed")
    restricted.wait_for_event("discreet", "ProgramFailed")
    (first, _) = restricted.batch_jobs("discreet")
    container = first["spec"]["template"]["spec"]["containers"][0]
    assert {"name": SECRET_VARIABLES, "value": "SECRET"} in container["env"]
    assert container["terminationMessagePolicy"] == "File"
    written = {
        "status": json.dumps(restricted.status("discreet")),
        "events": json.dumps(restricted.events("discreet")),
        "log": restricted.operators[0].log,
        "job.json": frozen_text(restricted, "discreet"),
    }
    assert "discreet" in written["log"]
    for where, text in written.items():
        # job.json has the pod template, as the MPTrainingJob and the pods do.
        assert plain not in text or where == "job.json", where
        assert secret not in text, where
    account = f"system:serviceaccount:{SYSTEM}:{OPERATOR}"
    asked = restricted.control_plane.kubectl(
        "auth", "can-i", "get", "secrets", "-n", restricted.namespace, f"--as={account}", check=False
    )
    assert asked.stdout.strip() == "no"


def test_a_stolen_token_opens_nothing_but_the_progress_endpoint(ns: Any) -> None:
    """The token's audience is the job's, so that the API server does not authenticate anyone by it."""
    ns.scripts["stolen-from"] = lambda pod: Run()
    ns.rest.post(ns.jobs, ns.document("stolen-from", workers=1))
    ns.running("stolen-from")
    uid = ns.get("stolen-from")["metadata"]["uid"]
    (pod,) = ns.control_plane.pods.select(ns.namespace, **{"mptraining.dev/job": "stolen-from"})
    audience = f"mptraining.dev/{ns.namespace}/{uid}"
    token = ns.control_plane.token(ns.namespace, "default", audiences=[audience], pod=(pod.name, pod.uid))
    with pytest.raises(Refused) as refused:
        ns.control_plane.rest_client(token).get("/api")
    assert refused.value.code == 401
