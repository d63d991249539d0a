"""The installation on a real API server: the rights of a single namespace, the limits, the examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.testbed import ControlPlane, Exit, Refused, Run
from tests.testbed.binaries import missing
from tests.testbed.kubernetes.access import may, wait_until_allowed
from tests.testbed.kubernetes.chart import documents, render
from tests.testbed.kubernetes.installation import SYSTEM
from tests.testbed.kubernetes.operator_namespace import with_default

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
ACCOUNT = "narrow-operator"
BOUND = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount")


@pytest.fixture(scope="module")
def narrow(installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory, new_namespace: Any) -> Iterator[Any]:
    """An operator for one namespace, with only the rights that the chart gives it there."""
    absent = missing(["helm"])
    if absent:
        pytest.skip(absent)
    settings = {
        "namespaces": ["narrow"],
        "lease": {"name": "operator-narrow"},
        "progress": {"service": "narrow"},
    }
    limits = {"accelerators": ["cpu"], "registries": ["gcr.io/team"], "workersPerJob": 3, "workersPerNamespace": 3}
    runtimes = with_default(limits=limits)
    ns = new_namespace(installed, "narrow", progress={"port": 0, "service": "narrow"}, runtimes=runtimes)
    rendered = documents(render({"settings": settings, "crds": {"install": False}}, release="narrow"))
    rights = [each for each in rendered if each["kind"] in BOUND]
    installed.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(rights))
    user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
    for asked in (
        may(user, "watch", "mptraining.dev", "mptrainingjobs", "narrow"),
        may(user, "update", "coordination.k8s.io", "leases", SYSTEM, "operator-narrow"),
        may(user, "create", "authentication.k8s.io", "tokenreviews", None),
    ):
        # The roles take effect a moment after they are created; the operator would retry, and log it.
        wait_until_allowed(installed.rest, asked)
    ns.with_kubelet()
    try:
        ns.operator(account=ACCOUNT)
        yield ns
    finally:
        ns.close()


def test_with_the_rights_of_one_namespace_jobs_run_there(narrow: Any) -> None:
    narrow.create("quick", lambda pod: Exit(0))
    narrow.phase("quick", "Succeeded")
    assert "orbidden" not in narrow.operators[0].log
    assert "Traceback" not in narrow.operators[0].log


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"accelerator": {"type": "t4"}},
            "spec.accelerator.type: 't4' is outside runtimes.default.limits.",
        ),
        ({"podTemplate": {"serviceAccountName": ACCOUNT}}, "spec.podTemplate.serviceAccountName: "),
    ],
)
def test_a_job_outside_the_limits_fails_with_its_name(narrow: Any, spec: dict[str, Any], said: str) -> None:
    name = "outside"
    narrow.create(name, **spec)
    failed = narrow.phase(name, "Failed")
    narrow.delete(name)
    (condition,) = (each for each in failed["conditions"] if each["type"] == "Failed")
    assert condition["reason"] == "OutsideLimits"
    assert condition["message"].startswith(said)
    assert not narrow.batch_jobs(name)


def test_a_job_waits_for_the_workers_of_its_namespace(narrow: Any) -> None:
    narrow.create("holds", lambda pod: Run())
    narrow.running("holds")
    narrow.create("waits", lambda pod: Exit(0))
    narrow.until("waits", lambda status: "NamespaceFull" in str(status.get("conditions")))
    assert not narrow.batch_jobs("waits")
    narrow.patch("holds", {"spec": {"runPolicy": {"suspend": True}}})
    narrow.phase("waits", "Succeeded")


def test_the_folder_of_manifests_is_a_base_for_kustomize(control_plane: ControlPlane) -> None:
    built = documents(control_plane.kubectl("kustomize", str(EXAMPLES.parent)).stdout)
    plain = documents((EXAMPLES.parent / "install.yaml").read_text(encoding="utf-8"))

    def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(each["kind"], each["metadata"]["name"]): each for each in found}

    # Kinds and keys have another order.
    assert by_name(built) == by_name(plain)


def test_the_api_server_takes_every_example(installed: ControlPlane, namespace: str) -> None:
    """Strictly, and with the resource's rules, as a dry run."""
    for file in sorted(EXAMPLES.glob("*.yaml")):
        try:
            done = installed.kubectl(
                "create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", str(file)
            )
        except (RuntimeError, Refused) as refused:
            pytest.fail(f"{file.name}: {refused}")
        assert "mptrainingjob.mptraining.dev/" in done.stdout
