"""A running worker, reached through the real API server; its debugger listens on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

import mptraining
from mptraining.cluster import worker_container
from mptraining.cluster.connection import Cluster, connect
from mptraining.cluster.errors import NotAllowed
from mptraining_api.launch import SOURCE_FOLDER
from tests.testbed import NodeServer, Run


@pytest.fixture(scope="module")
def reached(installed: Any, new_namespace: Any) -> Iterator[Any]:
    """A namespace with an operator and a kubelet."""
    ns = new_namespace(installed, "reached").with_kubelet()
    try:
        ns.operator()
        yield ns
    finally:
        ns.close()


def test_a_debugger_of_a_worker(reached: Any, node_server: NodeServer, use: Any) -> None:
    reached.create("digits", lambda pod: Run(), workers=1)
    reached.running("digits")
    use(reached.control_plane, reached.namespace)
    server = mptraining.attach("digits").server
    (pod,) = reached.control_plane.pods.select(reached.namespace, **{"mptraining.dev/job": "digits"})
    node_server.commands[reached.namespace, pod.name] = {SOURCE_FOLDER: "/files"}
    with socket.create_server(("127.0.0.1", 0)) as debugger:
        port = debugger.getsockname()[1]
        found, source = worker_container.wait_for_debugger(server, "digits", 0, port, say=print, pause=print)
        assert (found.name, source) == (pod.name, "/files")
        with (
            worker_container.forwarded(server, pod.name, port) as local,
            socket.create_connection(("127.0.0.1", local), timeout=60) as client,
        ):
            client.sendall(b"initialize")
            with debugger.accept()[0] as accepted:
                assert accepted.recv(100) == b"initialize"
                accepted.sendall(b"initialized")
                assert client.recv(100) == b"initialized"
            assert client.recv(100) == b"", "the debugger has closed the connection"

    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    token = reached.control_plane.service_account(reached.namespace, "looker", rules=rules)
    kubeconfig = reached.control_plane.kubeconfig("looker", token, namespace=reached.namespace)
    limited = connect(Cluster(kubeconfig=str(kubeconfig)))
    with pytest.raises(NotAllowed, match=r"looker may not get pods/exec .*--clusterrole=edit"):
        worker_container.execute(limited, pod.name, ["ls"])
    with (
        pytest.raises(NotAllowed, match=r"may not get pods/portforward .*--clusterrole=edit"),
        worker_container.pod_stream(limited, pod.name, "portforward", [("ports", str(port))], "v4.channel.k8s.io"),
    ):
        pass
