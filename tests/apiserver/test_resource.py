"""The resource MPTrainingJob is removed and installed again while the operator runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.rest import Refused

ROOT = Path(__file__).parents[2]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mptrainingjobs.mptraining.dev"


@pytest.fixture
def own(tmp_path: Path, new_namespace: Any) -> Iterator[Any]:
    """A separate control plane, because the resource's removal deletes all of its jobs."""
    with ControlPlane(tmp_path) as started:
        install(started)
        started.nodes.create("resource-node")
        ns = new_namespace(started, "resource", relistSeconds=600).with_kubelet()
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
