"""What happens under a running operator: the resource is removed, or newer; a backup of etcd is restored."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit, Run
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.rest import Refused

ROOT = Path(__file__).parents[3]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mptrainingjobs.mptraining.dev"


@pytest.fixture
def own(tmp_path: Path, new_namespace: Any) -> Iterator[Any]:
    """A separate control plane, because the resource's removal deletes all of its jobs."""
    with ControlPlane(tmp_path) as started:
        install(started)
        started.nodes.create("resource-node")
        ns = new_namespace(started, "resource").with_kubelet()
        try:
            yield ns
        finally:
            ns.close()


def test_after_the_resource_was_away_its_jobs_are_watched_again(own: Any) -> None:
    operator = own.operator()
    own.create("before", lambda pod: Exit(0))
    own.phase("before", "Succeeded")
    own.rest.delete(CRD)
    own.wait(lambda: served(own), lambda there: not there)
    own.wait(lambda: operator.log, lambda log: "the resource is not installed" in log)
    own.control_plane.apply_crd(ROOT / "charts/mptraining/files/crd.yaml")
    own.create("after", lambda pod: Exit(0))
    # The watch reports it: the next list is ten minutes away.
    own.wait(lambda: own.batch_jobs("after"), lambda jobs: jobs)
    own.phase("after", "Succeeded")
    assert operator.server.exit_code is None


def test_after_the_restore_of_a_backup_of_etcd_jobs_are_reconciled_as_they_are_stored(own: Any) -> None:
    """resourceVersions go back, to lower ones than the operator has seen."""
    plane, operator = own.control_plane, own.operator()
    own.create("runs", lambda pod: Run())
    own.phase("runs", "Running")
    with without_servers(plane):
        shutil.copytree(plane.folder / "etcd", plane.folder / "backup")
    for number in range(3):
        own.create(f"lost-{number}", lambda pod: Exit(0))
        own.phase(f"lost-{number}", "Succeeded")
    with without_servers(plane):
        shutil.rmtree(plane.folder / "etcd")
        (plane.folder / "backup").rename(plane.folder / "etcd")
    own.create("after", lambda pod: Exit(0))
    own.wait(lambda: own.get("after").get("status", {}).get("phase"), lambda phase: phase == "Succeeded", seconds=240)
    assert {job["metadata"]["name"] for job in own.rest.get(own.jobs)["items"]} == {"runs", "after"}
    own.end("runs-1", Exit(0))
    own.phase("runs", "Succeeded")
    assert operator.server.exit_code is None


@contextmanager
def without_servers(plane: ControlPlane) -> Iterator[None]:
    """Stop the servers meanwhile; the operator goes on."""
    plane.process("kube-controller-manager").stop()
    plane.stop_api_server()
    plane.process("etcd").stop()
    yield
    plane._start_etcd()
    plane.start_api_server()
    plane._start_controller_manager()


def served(ns: Any) -> bool:
    try:
        ns.rest.get(ns.jobs)
    except Refused:
        return False
    return True


def test_a_field_of_a_newer_version_is_reported_and_the_job_trains(alone: Any) -> None:
    """A newer CRD accepts fields that this operator does not know."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mptrainingjobs.mptraining.dev"
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/colour"
    add = [{"op": "add", "path": schema, "value": {"type": "string"}}]
    alone.rest.patch(crd, add, kind="application/json-patch+json")
    try:

        def made() -> Any:
            # The API server takes a moment to serve a changed schema, and may answer 429 or 503 meanwhile.
            try:
                alone.create("newer", lambda pod: Exit(0), colour="green")
            except Refused as refused:
                if refused.code not in (429, 503):
                    raise
                return False
            if alone.get("newer")["spec"].get("colour"):
                return True
            alone.delete("newer")
            return False

        alone.wait(made, lambda done: done)
        alone.operator()
        alone.phase("newer", "Succeeded")
        alone.wait(lambda: alone.events("newer"), lambda said: any("spec.colour" in each for each in said))
    finally:
        alone.rest.patch(crd, [{"op": "remove", "path": schema}], kind="application/json-patch+json")
        alone.wait(lambda: colour_is_kept(alone), lambda kept: not kept)


def colour_is_kept(ns: Any) -> bool:
    """Report whether the API server still serves the schema with the field; during the change it answers 429."""
    body = ns.document("dry", colour="green")
    try:
        return "colour" in ns.rest.post(ns.jobs, body, {"dryRun": "All"})["spec"]
    except Refused:
        return True
