"""The threat model of docs/security.md against a real API server: its admission, its RBAC, its Pod Security.

Most lines are said by somebody who may make MPTrainingJobs and ConfigMaps in one namespace, and nothing else: what
`mptj submit` needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mptraining_api.launch import SECRET_VARIABLES
from mptraining_api.resolved_job import ResolvedJob
from tests.testbed import Exit, Refused, Rest, Run
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM

STRICT = {"fieldValidation": "Strict"}
JOBS = "mptraining.dev/v1alpha1"
PROGRAMS: dict[str, dict[str, Any]] = {
    "application": {},
    "function": {"program": {"function": {"entryPoint": "flowers:build"}}, "source": {"configMap": {"name": "code"}}},
    "script": {
        "program": {"script": {"path": "train.py"}},
        "source": {"configMap": {"name": "code"}},
        **{"data": None, "training": None, "nodes": 1},
    },
    "archive": {
        "program": {"function": {"entryPoint": "flowers:build"}},
        "source": {"archive": {"uri": "gs://bucket/code.tgz", "sha256": "0" * 64}, "requirements": "requirements.txt"},
    },
    # All that a podTemplate may say, but an account and a place. Volumes of images need a feature gate in 1.34.
    "template": {
        "podTemplate": {
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}}],
            "envFrom": [{"secretRef": {"name": "more", "optional": True}}],
            "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}},
            "volumes": [
                {"name": "a", "configMap": {"name": "code"}},
                {"name": "b", "secret": {"secretName": "token"}},
                {"name": "c", "emptyDir": {}},
                {"name": "d", "projected": {"sources": [{"secret": {"name": "token"}}]}},
                {"name": "e", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "f", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "g", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}},
            ],
            "volumeMounts": [{"name": name, "mountPath": f"/mnt/{name}"} for name in "abcdefg"],
            "tolerations": [{"operator": "Exists"}],
            "labels": {"team": "a"},
            "annotations": {"gke-gcsfuse/volumes": "true"},
        }
    },
}


@pytest.fixture
def user(life: Any) -> Rest:
    """Who may make MPTrainingJobs and ConfigMaps in the namespace of `life`, and look at what becomes of them."""
    rules = [
        {"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list", "watch"]},
    ]
    token = life.control_plane.service_account(life.namespace, "data-scientist", rules=rules)
    rest: Rest = life.control_plane.rest_client(token)
    return rest


@pytest.fixture(scope="module")
def restricted(installed: Any, new_life: Any) -> Iterator[Any]:
    """A namespace that admits restricted pods only, with an operator that logs all it can."""
    life = new_life(installed, "restricted-life", logLevel="DEBUG")
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    life.rest.patch(f"/api/v1/namespaces/{life.namespace}", level)
    life.with_kubelet()
    try:
        life.operator()
        yield life
    finally:
        life.close()


def refusal(life: Any, rest: Rest, spec: dict[str, Any], query: dict[str, str] = STRICT) -> str:
    """What the API server says to a job with these sections; empty when it takes it. Nothing is kept."""
    try:
        rest.post(life.jobs, life.document("asked", **spec), {**query, "dryRun": "All"})
    except Refused as refused:
        return refused.message
    return ""


# The host.


@pytest.mark.parametrize(
    "volume",
    [
        {"hostPath": {"path": "/"}},
        {"emptyDir": {}, "hostPath": {"path": "/"}},
        {"flexVolume": {"driver": "a/b"}},
        {"gitRepo": {"repository": "https://example.org/a"}},
        {"nfs": {"server": "files", "path": "/"}},
        {"local": {"path": "/"}},
        {},
    ],
    ids=lambda volume: "-".join(volume) or "none",
)
def test_no_volume_is_of_the_host(life: Any, user: Rest, volume: dict[str, Any]) -> None:
    spec = {"podTemplate": {"volumes": [{"name": "a", **volume}]}}
    said = refusal(life, user, spec)
    assert "spec.podTemplate.volumes: expected one of" in said or "unknown field" in said
    # Of a client that asks for no validation of fields, an unknown kind is dropped, and the rest of the volume refused.
    assert "spec.podTemplate.volumes: expected one of" in refusal(life, user, spec, {"fieldValidation": "Ignore"})


PRIVILEGES: dict[str, Any] = {
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "hostUsers": True,
    "shareProcessNamespace": True,
    "automountServiceAccountToken": True,
    "runtimeClassName": "privileged",
    "securityContext": {
        "privileged": True,
        "procMount": "Unmasked",
        "runAsUser": 0,
        "capabilities": {"add": ["SYS_ADMIN"]},
        "seccompProfile": {"type": "Unconfined"},
    },
    "initContainers": [{"name": "a", "image": "b", "securityContext": {"privileged": True}}],
    "containers": [{"name": "a", "image": "b"}],
    "ephemeralContainers": [{"name": "a", "image": "b"}],
    "command": ["sh"],
    "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["a"]}],
    "dnsPolicy": "Default",
    "ports": [{"containerPort": 80, "hostPort": 80}],
    "volumeDevices": [{"name": "a", "devicePath": "/dev/sda"}],
    "affinity": {},
}


@pytest.mark.parametrize("field", PRIVILEGES)
def test_no_field_of_a_pod_that_gives_privileges_is_taken(life: Any, user: Rest, field: str) -> None:
    said = refusal(life, user, {"podTemplate": {field: PRIVILEGES[field]}})
    assert f'unknown field "spec.podTemplate.{field}"' in said


def test_what_a_client_makes_nobody_check_does_not_reach_the_pods(restricted: Any) -> None:
    """With every such field in one job that no validation of fields held up."""
    body = restricted.document("sly", nodes=1, podTemplate=PRIVILEGES)
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


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"podTemplate": {"annotations": {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}}},
            "spec.podTemplate.annotations: expected keys outside container.apparmor.",
        ),
        (
            {"scheduling": {"priorityClassName": "system-node-critical"}},
            "spec.scheduling.priorityClassName: expected a class that does not begin with system-",
        ),
        (
            {"podTemplate": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
            "spec.podTemplate.env: expected other variables than",
        ),
        (
            {"podTemplate": {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}},
            "spec.podTemplate.resources: expected cpu, memory and the like, without accelerators",
        ),
        (
            {"podTemplate": {"labels": {"mptraining.dev/job-uid": "another"}}},
            "spec.podTemplate.labels: expected keys outside mptraining.dev/",
        ),
        (
            {"podTemplate": {"env": [{"name": "MPTRAINING_PROGRESS_URL", "value": "https://evil"}]}},
            "spec.podTemplate.env: expected other variables than",
        ),
    ],
)
def test_no_way_around_what_others_decide(life: Any, user: Rest, spec: dict[str, Any], said: str) -> None:
    assert said in refusal(life, user, spec)


# Pods under `restricted`.


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kind_of_program_passes_restricted_pod_security(restricted: Any, name: str) -> None:
    restricted.create(name, lambda pod: Exit(0), **{"nodes": 1, **PROGRAMS[name]})
    restricted.phase(name, "Succeeded")
    (batch,) = restricted.batch_jobs(name)
    spec = batch["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    pods = restricted.control_plane.pods.select(restricted.namespace, **{"mptraining.dev/job": name})
    raw = restricted.rest.get(f"/api/v1/namespaces/{restricted.namespace}/pods/{pods[0].name}")
    # What admission would add for the Kubernetes API.
    assert not [each for each in raw["spec"]["volumes"] if each["name"].startswith("kube-api-access")]
    for container in (*raw["spec"]["containers"], *raw["spec"].get("initContainers", ())):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


@pytest.mark.parametrize("allows", [True, False])
def test_an_account_that_refuses_its_token_is_heard(restricted: Any, allows: bool) -> None:
    name = f"account-{str(allows).lower()}"
    account = {"metadata": {"name": name}, "automountServiceAccountToken": allows}
    restricted.rest.post(f"/api/v1/namespaces/{restricted.namespace}/serviceaccounts", account)
    restricted.create(name, lambda pod: Exit(0), nodes=1, podTemplate={"serviceAccountName": name})
    restricted.phase(name, "Succeeded")
    (pod,) = restricted.control_plane.pods.select(restricted.namespace, **{"mptraining.dev/job": name})
    raw = restricted.rest.get(f"/api/v1/namespaces/{restricted.namespace}/pods/{pod.name}")
    assert raw["spec"]["serviceAccountName"] == name
    assert any(each["name"].startswith("kube-api-access") for each in raw["spec"]["volumes"]) is allows


# Another namespace.


def test_a_reference_into_another_namespace_leads_nowhere(life: Any, user: Rest) -> None:
    """Kubernetes' own objects in a podTemplate know no namespace: the API server drops the field."""
    other = life.control_plane.namespace("others-secrets")
    life.rest.post(f"/api/v1/namespaces/{other}/secrets", {"metadata": {"name": "theirs"}, "stringData": {"k": "v"}})
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
    life.scripts["abroad"] = lambda pod: Run()
    user.post(life.jobs, life.document("abroad", nodes=1, podTemplate=template))
    life.running("abroad")
    (batch,) = life.batch_jobs("abroad")
    assert other not in json.dumps(batch)
    assert batch["metadata"]["namespace"] == life.namespace
    # Where a section of the job's own could name one, there is no such field.
    said = refusal(life, user, {**PROGRAMS["function"], "source": {"configMap": {"name": "a", "namespace": other}}})
    assert 'unknown field "spec.source.configMap.namespace"' in said
    life.delete("abroad")
    path = f"/apis/{JOBS}/namespaces/{other}/mptrainingjobs"
    with pytest.raises(Refused, match="forbidden"):
        user.post(path, life.document("abroad"))


# The operator's identity, and what it has written.


def test_nobody_becomes_the_operator(life: Any, user: Rest) -> None:
    life.scripts["impostor"] = lambda pod: Run()
    user.post(life.jobs, life.document("impostor", podTemplate={"serviceAccountName": OPERATOR}))
    life.phase("impostor", "Failed")
    failed = life.condition("impostor", "Failed")
    assert (failed["reason"], life.batch_jobs("impostor")) == ("OutsideLimits", [])
    assert failed["message"].startswith(f"spec.podTemplate.serviceAccountName: '{OPERATOR}' is the operator's own name")
    with pytest.raises(Refused, match="forbidden"):
        user.post(f"/apis/{JOBS}/namespaces/{SYSTEM}/mptrainingjobs", life.document("impostor"))


def test_no_user_writes_a_status(life: Any, user: Rest) -> None:
    body = {**life.document("honest"), "status": {"phase": "Succeeded", "jobDigest": "0" * 64}}
    life.scripts["honest"] = lambda pod: Run()
    user.post(life.jobs, body)
    status = life.running("honest")
    with pytest.raises(Refused, match="forbidden"):
        user.patch(f"{life.jobs}/honest/status", {"status": {"phase": "Succeeded"}})
    user.patch(f"{life.jobs}/honest", {"status": {"phase": "Succeeded", "jobDigest": None}})
    assert life.status("honest")["phase"] == "Running"
    assert life.status("honest")["jobDigest"] == status["jobDigest"] != "0" * 64


def forged(life: Any, name: str, text: str) -> dict[str, Any]:
    """The ConfigMap of a frozen job, as the operator makes it."""
    owner = life.get(name)["metadata"]
    reference = {"apiVersion": JOBS, "kind": "MPTrainingJob", "name": name, "uid": owner["uid"], "controller": True}
    labels = {"mptraining.dev/job": name, "mptraining.dev/job-uid": owner["uid"]}
    metadata = {"name": f"{name}-job", "labels": labels, "ownerReferences": [reference]}
    return {"metadata": metadata, "immutable": True, "data": {"job.json": text}}


def test_a_frozen_job_that_somebody_slipped_in_is_not_trained(life: Any, user: Rest) -> None:
    """It says image, machines and number of pods: past every limit that the administrator sets."""
    config_maps = f"/api/v1/namespaces/{life.namespace}/configmaps"
    life.scripts["slipped"] = life.scripts["exemplar"] = lambda pod: Run()
    user.post(life.jobs, life.document("exemplar"))
    life.running("exemplar")
    job = ResolvedJob.read(user.get(f"{config_maps}/exemplar-job")["data"]["job.json"])
    text = job.model_copy(update={"name": "slipped", "image": "evil.org/miner:1", "processes": 40}).to_json()
    user.post(life.jobs, life.document("slipped", runPolicy={"suspend": True}))
    life.phase("slipped", "Suspended")
    user.post(config_maps, forged(life, "slipped", text))
    user.patch(f"{life.jobs}/slipped", {"spec": {"runPolicy": {"suspend": False}}})
    said = life.waits("slipped", "ChildNameTaken")
    assert "ConfigMap slipped-job" in said
    assert "is not the job that status.jobDigest vouches for. Delete the ConfigMap" in said
    assert life.batch_jobs("slipped") == []
    # The way out that the message names; the second ConfigMap is the operator's, the job the user's own.
    user.delete(f"{config_maps}/slipped-job")
    life.running("slipped")
    (batch,) = life.batch_jobs("slipped")
    assert batch["spec"]["template"]["spec"]["containers"][0]["image"] == "mptraining/trainer:test"


def test_a_frozen_job_that_somebody_made_anew_is_not_trained(life: Any, user: Rest) -> None:
    config_maps = f"/api/v1/namespaces/{life.namespace}/configmaps"
    life.scripts["replaced"] = lambda pod: Run()
    user.post(life.jobs, life.document("replaced", runPolicy={"suspend": True}))
    life.phase("replaced", "Suspended")
    user.patch(f"{life.jobs}/replaced", {"spec": {"runPolicy": {"suspend": False}}})
    life.until("replaced", lambda status: status.get("currentAttempt") == 1)
    text = life.wait(lambda: life.child("configmaps", "replaced-job"), lambda found: found)["data"]["job.json"]
    user.delete(f"{config_maps}/replaced-job")
    user.post(config_maps, forged(life, "replaced", text.replace("mptraining/trainer:test", "evil.org/miner:1")))
    # Not before: the next attempt would make the ConfigMap anew.
    life.running("replaced")
    life.end("replaced-1", Exit(1))
    life.until("replaced", lambda status: status.get("currentAttempt") == 2)
    found = life.wait(lambda: life.batch_jobs("replaced"), lambda jobs: len(jobs) == 2)
    images = [each["spec"]["template"]["spec"]["containers"][0]["image"] for each in found]
    assert images == ["mptraining/trainer:test"] * 2


# Secrets.


def test_no_secret_stands_in_status_events_logs_or_the_frozen_job(restricted: Any) -> None:
    """The operator may not read Secrets, and repeats no variable: not at DEBUG, not when a pod fails."""
    plain, secret = "plain-0123456789", "secret-0123456789"
    path = f"/api/v1/namespaces/{restricted.namespace}/secrets"
    restricted.rest.post(path, {"metadata": {"name": "password"}, "stringData": {"p": secret}})
    template = {
        "env": [
            {"name": "PLAIN", "value": plain},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "password", "key": "p"}}},
        ]
    }
    restricted.create("discreet", lambda pod: Exit(1), nodes=1, podTemplate=template, runPolicy={"backoffLimit": 1})
    restricted.phase("discreet", "Failed")
    restricted.told("discreet", "ProgramFailed")
    (first, _) = restricted.batch_jobs("discreet")
    container = first["spec"]["template"]["spec"]["containers"][0]
    assert {"name": SECRET_VARIABLES, "value": "SECRET"} in container["env"]
    assert container["terminationMessagePolicy"] == "File"
    written = {
        "status": json.dumps(restricted.status("discreet")),
        "events": json.dumps(restricted.events("discreet")),
        "log": restricted.operators[0].log,
        "job.json": json.dumps(restricted.child("configmaps", "discreet-job")),
    }
    assert "discreet" in written["log"]
    for where, text in written.items():
        assert plain not in text, where
        assert secret not in text, where
    account = f"system:serviceaccount:{SYSTEM}:{OPERATOR}"
    asked = restricted.control_plane.kubectl(
        "auth", "can-i", "get", "secrets", "-n", restricted.namespace, f"--as={account}", check=False
    )
    assert asked.stdout.strip() == "no"


def test_a_stolen_token_opens_nothing_but_the_progress_endpoint(life: Any) -> None:
    """Its audience is the job's, so that the API server knows nobody by it."""
    life.scripts["stolen-from"] = lambda pod: Run()
    life.rest.post(life.jobs, life.document("stolen-from", nodes=1))
    life.running("stolen-from")
    uid = life.get("stolen-from")["metadata"]["uid"]
    (pod,) = life.control_plane.pods.select(life.namespace, **{"mptraining.dev/job": "stolen-from"})
    audience = f"mptraining.dev/{life.namespace}/{uid}"
    token = life.control_plane.token(life.namespace, "default", audiences=[audience], pod=(pod.name, pod.uid))
    with pytest.raises(Refused) as refused:
        life.control_plane.rest_client(token).get("/api")
    assert refused.value.code == 401
