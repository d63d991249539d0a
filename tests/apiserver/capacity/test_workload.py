"""Kubernetes' own gang scheduling (KEP-4671, alpha): the scheduler of 1.36 places all workers of a job or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.apiserver.capacity.test_gangs import job, machine, placed, train_whole
from tests.testbed import ControlPlane, Options
from tests.testbed.binaries import other
from tests.testbed.kubernetes.control_plane import CONTROLLERS
from tests.testbed.kubernetes.installation import install

POD_GROUPS = "scheduling.k8s.io/v1alpha2 podgroups"
OPTIONS = Options(
    scheduler=True,
    # It removes the finalizer of a PodGroup without pods.
    controllers=(*CONTROLLERS, "podgroup-protection-controller"),
    feature_gates=("GenericWorkload=true", "GangScheduling=true"),
    apis=("scheduling.k8s.io/v1alpha2=true",),
)

if other() == "1.36":

    @pytest.fixture(scope="module")
    def gangs(tmp_path_factory: pytest.TempPathFactory, control_plane_servers: None) -> Iterator[ControlPlane]:
        with ControlPlane(tmp_path_factory.mktemp("workload"), OPTIONS) as plane:
            install(plane)
            yield plane

    @pytest.fixture
    def ns(gangs: ControlPlane, new_namespace: Any, namespace: str) -> Iterator[Any]:
        ns = new_namespace(gangs, f"{namespace}-workload").with_kubelet(bind=False)
        # Nothing but the scheduler keeps the two jobs from each other's machines.
        ns.operator(gangReleaseSeconds=0)
        yield ns
        ns.close()

    @pytest.mark.parametrize("scheduling", [None, {"gang": "Workload"}], ids=["Auto", "Workload"])
    def test_a_job_holds_both_machines_or_none(ns: Any, scheduling: dict[str, str] | None) -> None:
        pool = "auto" if scheduling is None else "named"
        machine(ns, f"{pool}-1", pool)
        ns.create("left", **job(pool), scheduling=scheduling)
        ns.create("right", **job(pool), scheduling=scheduling)
        for name in ("left", "right"):
            group = ns.wait(lambda name=name: ns.child(POD_GROUPS, f"{name}-1"), lambda found: found is not None)
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
            ns.waits(name, "Unschedulable")
        assert (placed(ns, "left-1"), placed(ns, "right-1")) == (0, 0)
        machine(ns, f"{pool}-2", pool)
        train_whole(ns, "left", "right")
        for name in ("left", "right"):
            ns.delete(name)
            ns.wait(lambda name=name: ns.child(POD_GROUPS, f"{name}-1"), lambda found: found is None)
