"""The chart's ValidatingAdmissionPolicies on a real API server: jobs outside the limits are refused when they are
applied, in the words of the operator's own check.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from mptraining_api.admin_limits import JobLimits
from mptraining_api.admission.limit_rules import check_limits
from mptraining_api.problems import OutsideLimits
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from tests.api.sweep.sweeps import document as sweep_document
from tests.testbed import ControlPlane, Refused
from tests.testbed.binaries import missing
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.chart import documents, render
from tests.testbed.kubernetes.installation import SYSTEM

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
DIGEST = "sha256:" + "0" * 64
DENIED = re.compile(r"ValidatingAdmissionPolicy '\S+' with binding '\S+' denied request: (.*)$", re.DOTALL)
SPEC: Json = {
    "accelerator": {"type": "nvidia-tesla-t4"},
    "program": {"application": {"name": "cnn", "classes": 2}},
    "data": {"train": ["gs://bucket/train"]},
    "training": {"batchSize": {"global": 96}},
}
ACCOUNT = "own"
# Each set of limits is a release of the chart for a namespace of its own.
LIMITS: dict[str, Json] = {
    "any": {},
    "machines": {"accelerators": ["t4", "cpu", "tpu-v5-lite-podslice"], "nodesPerJob": 3, "nodesPerNamespace": 5},
    "namespaces": {"nodesPerNamespace": 2},
    "images": {
        "images": ["team/trainer", "gcr.io/p/exact:1", f"gcr.io/p/digest@{DIGEST}", "localhost:5000/a/b:v"],
        "registries": ["gcr.io/team/", "Index.docker.io/library"],
    },
    "registries": {"registries": ["gcr.io"]},
    "fallback": {"nodesPerJob": 1},
}


def of_image(text: str) -> Json:
    return {"podTemplate": {"image": text}}


def of_volumes(*volumes: Json) -> Json:
    return {"podTemplate": {"volumes": [{"name": f"v{index}", **each} for index, each in enumerate(volumes)]}}


def of_tpu(topology: str, count: int | None = None) -> Json:
    chips = {"countPerNode": count} if count else {}
    return {"accelerator": {"type": "tpu-v5-lite-podslice", "topology": topology, **chips}}


IMAGES = (
    *("team/trainer:9", "team/trainer", "docker.io/team/trainer:1", f"team/trainer@{DIGEST}", "team/trainer2"),
    *("gcr.io/p/exact:1", "gcr.io/p/exact", "gcr.io/p/exact:2", f"gcr.io/p/exact:1@{DIGEST}", "GCR.io/p/exact:1"),
    *(f"gcr.io/p/digest@{DIGEST}", f"gcr.io/p/digest:7@{DIGEST}", "gcr.io/p/digest:7", "gcr.io/team/a:1"),
    *("gcr.io/teams/a:1", "gcr.io.evil.org/team/a", "evil.org/gcr.io/team/a", "nginx", "docker.io/nginx:1"),
    *("localhost:5000/a/b:v", "localhost:5000/a/b", "localhost/a/b:v", "gcr.io:443/team/a", "gcr.io/a b", "Trainer"),
)
JOBS: list[tuple[str, Json]] = [
    *(("any", spec) for spec in ({}, of_image("evil.org/a"), {"podTemplate": {"serviceAccountName": ACCOUNT}})),
    ("any", {"podTemplate": {"serviceAccountName": "trainer"}}),
    *(("machines", {"nodes": nodes}) for nodes in (3, 4)),
    *(("machines", {"accelerator": {"type": type}}) for type in ("cpu", "nvidia-l4")),
    *(("machines", of_tpu(*each)) for each in (("2x2",), ("2x4",), ("4x4",), ("4x4", 4), ("2x4", 4))),
    *(("namespaces", {"nodes": nodes}) for nodes in (2, 3)),
    *(("images", of_image(text)) for text in IMAGES),
    ("images", {}),
    ("images", of_volumes({"emptyDir": {}}, {"image": {"reference": "evil.org/data"}})),
    ("images", of_volumes({"image": {"reference": "gcr.io/team/data:1"}}, {"emptyDir": {}})),
    ("images", {"podTemplate": {"image": "x/y", **of_volumes({"image": {"reference": "b/c"}})["podTemplate"]}}),
    *(("registries", of_image(text)) for text in ("gcr.io/p/a", "quay.io/p/a")),
    *(("fallback", spec) for spec in (of_tpu("4x4"), {"nodes": 2})),
]


def expected(limits: str, spec: Json) -> str | None:
    """Return the refusal of the operator's own check, or None."""
    job = MPTrainingJob.parse({"metadata": {"name": "flowers", "namespace": limits}, "spec": {**SPEC, **spec}})
    settings = ClusterSettings(cpu_fallback=limits == "fallback", experimental_multi_host_tpu=True)
    try:
        check_limits(
            job,
            resolve(job, settings),
            JobLimits.parse(LIMITS[limits]),
            operator_namespace=SYSTEM,
            operator_account=ACCOUNT,
        )
    except OutsideLimits as problem:
        return str(problem)
    return None


class Users:
    """Users who create jobs and sweeps, in dry runs."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane

    def refusal(self, namespace: str, document: Json, token: str | None = None) -> str | None:
        """Return the policy's message against the object; None if the API server accepts it."""
        plural = f"{document['kind'].lower()}s"
        plane = self.control_plane
        rest = plane.rest if token is None else plane.rest_client(token)
        path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/{plural}"
        try:
            rest.post(path, document, {"dryRun": "All", "fieldValidation": "Strict"})
        except Refused as refused:
            denied = DENIED.search(refused.message)
            return denied[1] if denied and refused.code == 403 else str(refused)
        return None

    def apply(self, *values: Json) -> None:
        kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        rendered = [
            each
            for one in values
            for each in documents(render(one, release=one["fullnameOverride"]))
            if each["kind"] in kinds
        ]
        self.control_plane.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(rendered))


def job(**spec: Any) -> Json:
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": "flowers"},
        "spec": {**SPEC, **spec},
    }


def sweep(path: str = "training.seed", **spec: Any) -> Json:
    parameters = [{"path": path, "values": [1]}]
    return sweep_document(parameters=parameters, job={**SPEC, **spec}) | {"metadata": {"name": "flowers"}}


def values(limits: str, **settings: Any) -> Json:
    return {
        "fullnameOverride": f"release-{limits}",
        "serviceAccount": {"name": ACCOUNT},
        "settings": {"limits": LIMITS[limits], "namespaces": [f"limits-{limits}"], **settings},
    }


@pytest.fixture(scope="module")
def users(control_plane: ControlPlane) -> Iterator[Users]:
    if absent := missing(["helm"]):
        pytest.skip(absent)
    found = Users(control_plane)
    for limits in LIMITS:
        control_plane.namespace(f"limits-{limits}")
    found.apply(*(values(limits, cpuFallback=limits == "fallback") for limits in LIMITS))
    outside = job(podTemplate={"serviceAccountName": ACCOUNT})
    for limits, make in itertools.product(LIMITS, (lambda: outside, lambda: sweep(**outside["spec"]))):
        # A policy takes effect a moment after it is created.
        wait_until(lambda limits=limits, make=make: found.refusal(f"limits-{limits}", make()) is not None, limits)
    yield found
    names = [
        f"release-{limits}-limits-{plural}" for limits in LIMITS for plural in ("mptrainingjobs", "mptrainingsweeps")
    ]
    control_plane.kubectl("delete", "validatingadmissionpolicybindings,validatingadmissionpolicies", *names)


@pytest.mark.parametrize(("limits", "spec"), JOBS)
def test_the_api_server_refuses_what_the_operator_refuses(users: Users, limits: str, spec: Json) -> None:
    refusal = expected(limits, spec)
    assert users.refusal(f"limits-{limits}", job(**spec)) == refusal
    in_sweep = refusal and refusal.replace("spec.", "spec.job.", 1)
    assert users.refusal(f"limits-{limits}", sweep(**spec)) == in_sweep


def test_the_table_has_both_sides_of_every_limit() -> None:
    found = [expected(limits, spec) for limits, spec in JOBS]
    words = ("own name", "outside limits.accelerators", "no image", "outside limits.images", "nodesPerJob")
    assert all(any(text and each in text for text in found) for each in (*words, "nodesPerNamespace", "registries ("))
    assert all(any(expected(*each) is None for each in JOBS if each[0] == limits) for limits in LIMITS)


def test_a_limited_field_that_is_a_parameter_of_the_sweep_is_left_to_its_trials(users: Users) -> None:
    assert users.refusal("limits-machines", sweep("nodes", nodes=9)) is None
    assert users.refusal("limits-machines", sweep("training.seed", nodes=9)) is not None


def test_other_namespaces_are_not_limited(users: Users) -> None:
    assert users.refusal("default", job(nodes=9)) is None


def test_the_operator_may_create_trials_which_it_refuses_itself(users: Users) -> None:
    rules = [{"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["create"]}]
    plane = users.control_plane
    plane.namespace(SYSTEM)
    token = plane.service_account(SYSTEM, ACCOUNT, rules=rules, cluster_wide=True)
    assert users.refusal("limits-machines", job(nodes=9), token) is None


def test_a_job_of_before_stricter_limits_may_be_suspended_and_not_moved_to_other_machines(users: Users) -> None:
    rest = users.control_plane.rest
    path = "/apis/mptraining.dev/v1alpha1/namespaces/limits-machines/mptrainingjobs"
    users.control_plane.kubectl("delete", "validatingadmissionpolicybinding", "release-machines-limits-mptrainingjobs")
    wait_until(lambda: users.refusal("limits-machines", job(nodes=9)) is None, "no policy")
    rest.post(path, job(nodes=9) | {"metadata": {"name": "earlier"}})
    users.apply(values("machines"))
    wait_until(lambda: users.refusal("limits-machines", job(nodes=9)) is not None, "the policy")
    rest.patch(f"{path}/earlier", {"spec": {"runPolicy": {"suspend": True}}})
    rest.patch(f"{path}/earlier", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Refused, match="8 nodes are more than"):
        rest.patch(f"{path}/earlier", {"spec": {"nodes": 8}})
    rest.patch(f"{path}/earlier", {"spec": {"nodes": 2}})
    rest.delete(f"{path}/earlier")
