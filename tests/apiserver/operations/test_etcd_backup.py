"""An operator that runs while an etcd backup is restored: resourceVersions go back, and deleted jobs exist again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed import ControlPlane, Exit, NodeServer
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.operator_namespace import OperatorNamespace


@pytest.fixture
def restorable(tmp_path: Path, control_plane_servers: None, node_server: NodeServer) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path) as started:
        install(started)
        started.nodes.create("cluster-node", server=node_server)
        yield started


def test_the_operator_follows_the_restored_cluster(
    restorable: ControlPlane, new_namespace: Callable[..., OperatorNamespace], tmp_path: Path
) -> None:
    ns = new_namespace(restorable, "restored").with_kubelet()
    assert ns.kubelet is not None
    operator = ns.operator()
    try:
        for name in ("runs", "deleted-later"):
            ns.create(name)
            ns.running(name)
        with restorable.etcd_stopped() as data:
            shutil.copytree(data, tmp_path / "backup")
        # Versions advance by far more than a restart of the API server takes.
        for number in range(500):
            restorable.rest.patch(
                f"/api/v1/namespaces/{ns.namespace}", {"metadata": {"labels": {"n": str(number)}}},
                kind="application/merge-patch+json",
            )  # fmt: skip
        ns.delete("deleted-later")
        ns.released("deleted-later")
        ns.create("created-later")
        ns.running("created-later")
        ns.kubelet.stop()
        with restorable.etcd_stopped() as data:
            shutil.rmtree(data)
            shutil.copytree(tmp_path / "backup", data)
        # Their watches are as silent as the operator's.
        restorable.restart_controller_manager()
        ns.with_kubelet()
        ns.create("new", lambda pod: Exit(0))
        ns.phase("new", "Succeeded", seconds=240)
        for name in ("runs", "deleted-later"):
            ns.end(f"{name}-1", Exit(0))
            assert ns.phase(name, "Succeeded", seconds=240)["currentAttempt"] == 1
        assert operator.server.exit_code is None
    finally:
        ns.close()
    assert "Traceback" not in operator.log, operator.log[-3000:]
