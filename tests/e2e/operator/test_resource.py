"""The resource MPTrainingJob while the operator runs: removed and installed again, or of a newer version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit
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
    own.wait(lambda: operator.log, lambda log: "ended: 404" in log)
    own.control_plane.apply_crd(ROOT / "charts/mptraining/files/crd.yaml")
    own.create("after", lambda pod: Exit(0))
    # The watch reports it: the next list is ten minutes away.
    own.wait(lambda: own.batch_jobs("after"), lambda jobs: jobs)
    own.phase("after", "Succeeded")
    assert operator.server.exit_code is None


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
            # The API server takes a moment to serve a changed schema, and may answer 429 meanwhile.
            try:
                alone.create("newer", lambda pod: Exit(0), colour="green")
            except Refused as refused:
                if refused.code != 429:
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
