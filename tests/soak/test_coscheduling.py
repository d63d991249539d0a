"""The real Coscheduling plugin of scheduler-plugins, as a second scheduler: it places both workers of a job or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.capacity.test_gangs import job, machine, placed, train_whole
from tests.apiserver.test_gangs_on_the_api_server import CRDS
from tests.left_out import leave_out
from tests.testbed import ControlPlane
from tests.testbed.binaries import binary
from tests.testbed.processes import Server, free_ports

NAME = "gangs"


@pytest.fixture(scope="module")
def plugin(scheduled: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    program = binary("kube-scheduler-coscheduling")
    if not (program.exists() and CRDS.is_dir()):
        leave_out("no kube-scheduler-coscheduling in build/bin: run `make build/bin/kube-scheduler-coscheduling`")
    scheduled.apply_crd(CRDS / "scheduling.x-k8s.io_podgroups.yaml")
    folder = tmp_path_factory.mktemp("coscheduling")
    profile = {
        "schedulerName": NAME,
        "plugins": {
            "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
            "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
        },
        "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 5}}],
    }
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(scheduled.admin_kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "profiles": [profile],
    }
    file = folder / "scheduler.yaml"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    (port,) = free_ports(1)
    command: list[str | Path] = [program, f"--config={file}", "--bind-address=127.0.0.1", f"--secure-port={port}"]
    with Server([*command, f"--cert-dir={folder}"], log=folder / "scheduler.log"):
        yield


@pytest.fixture
def ns(plugin: None, scheduled: ControlPlane, new_namespace: Any, namespace: str) -> Iterator[Any]:
    ns = new_namespace(scheduled, f"{namespace}-gangs").with_kubelet(bind=False)
    # Nothing but the plugin keeps the two jobs from each other's machines.
    ns.operator(gangSchedulers={"coscheduling": NAME}, gangReleaseSeconds=0)
    yield ns
    ns.close()


def test_a_job_holds_both_machines_or_none(ns: Any) -> None:
    machine(ns, "whole-1", "whole")
    ns.create("left", **job("whole"))
    ns.create("right", **job("whole"))
    ns.waits("left", "Unschedulable")
    ns.waits("right", "Unschedulable")
    assert (placed(ns, "left-1"), placed(ns, "right-1")) == (0, 0)
    machine(ns, "whole-2", "whole")
    train_whole(ns, "left", "right")
