"""The fault proxy injects the requested faults and no others."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from urllib3 import BaseHTTPResponse

from tests.testbed import ControlPlane, Refused, Rest, Watch
from tests.testbed.faults.proxy import FaultProxy
from tests.testbed.faults.rules import (
    CutWatch,
    Delay,
    DelayAnswer,
    DropAfter,
    DropBefore,
    ExpireWatch,
    HideEvents,
    Refuse,
    call,
)
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.rest import changes

DROPPED = r"abort|reset|closed|EOF"


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    with control_plane.fault_proxy() as started:
        yield started


@pytest.fixture
def through(control_plane: ControlPlane, proxy: FaultProxy) -> Iterator[Rest]:
    """A client that connects through the proxy."""
    rest = control_plane.rest_client(control_plane.rest.token, server=proxy.url)
    yield rest
    rest.close()


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def exists(control_plane: ControlPlane, maps: str, name: str) -> bool:
    try:
        control_plane.rest.get(f"{maps}/{name}")
    except Refused:
        return False
    return True


class TestWithoutFaults:
    def test_requests_pass_and_are_remembered(self, through: Rest, proxy: FaultProxy, maps: str) -> None:
        through.post(maps, config_map("a"))
        through.patch(f"{maps}/a", {"data": {"key": "value"}})
        assert through.get(f"{maps}/a")["data"] == {"key": "value"}
        with pytest.raises(Refused, match="NotFound"):
            through.get(f"{maps}/b")
        assert [(each.call.verb, each.call.name, each.code) for each in proxy.requests] == [
            ("create", "", 201),
            ("patch", "a", 200),
            ("get", "a", 200),
            ("get", "b", 404),
        ]
        assert proxy.count("get", "configmaps") == 2
        assert proxy.count(code=404) == 1

    def test_a_large_object_passes(self, through: Rest, maps: str) -> None:
        text = "x" * 900_000
        through.post(maps, config_map("large") | {"data": {"key": text}})
        assert through.get(f"{maps}/large")["data"]["key"] == text

    def test_events_of_a_watch_come_at_once(self, through: Rest, proxy: FaultProxy, maps: str) -> None:
        """Each arrives before the next one exists that could flush it, and before the API server's next bookmark."""
        seen: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        with Watch(through, maps, lambda kind, each: seen.put((kind, each["metadata"]["name"]))):
            wait_until(lambda: proxy.open_watches("configmaps") == 1, "an open watch")
            for number in range(5):
                through.post(maps, config_map(f"watched-{number}"))
                while (event := seen.get(timeout=30))[1] != f"watched-{number}":
                    pass
                assert event[0] == "ADDED"

    def test_kubectl_works_through_it(self, control_plane: ControlPlane, proxy: FaultProxy) -> None:
        kubeconfig = control_plane.kubeconfig("faulty", control_plane.rest.token, server=proxy.url)
        assert "default" in control_plane.kubectl("get", "namespaces", kubeconfig=kubeconfig).stdout
        assert proxy.count("list", "namespaces") == 1

    def test_an_api_server_that_is_down_looks_like_one(self, control_plane: ControlPlane) -> None:
        keys = control_plane.folder / "keys"
        files = {"authority": keys / "ca.crt", "certificate": keys / "server.crt", "key": keys / "server.key"}
        with FaultProxy("https://127.0.0.1:1", **files) as nowhere:
            rest = Rest(nowhere.url, token="none", authority=keys / "ca.crt")
            with pytest.raises(OSError, match=DROPPED):
                rest.get("/version")
            rest.close()


class TestFaults:
    @pytest.mark.parametrize(
        ("code", "reason"), [(403, "Forbidden"), (409, "Conflict"), (500, "InternalError"), (503, "ServiceUnavailable")]
    )
    def test_refused(
        self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str, code: int, reason: str
    ) -> None:
        rule = proxy.add(Refuse(code, reason, "told to"), verb="create", resource="configmaps", times=1)
        with pytest.raises(Refused, match=f"{code} {reason}: told to"):
            through.post(maps, config_map("a"))
        assert not exists(control_plane, maps, "a")
        through.post(maps, config_map("a"))
        assert rule.hits == 1

    def test_too_many_requests_says_when_to_come_back(self, control_plane: ControlPlane, proxy: FaultProxy) -> None:
        proxy.add(Refuse(429, "TooManyRequests", retry_after=1), verb="list", resource="namespaces", times=1)
        kubeconfig = control_plane.kubeconfig("patient", control_plane.rest.token, server=proxy.url)
        began = time.monotonic()
        assert control_plane.kubectl("get", "namespaces", kubeconfig=kubeconfig).returncode == 0
        assert time.monotonic() - began >= 1
        assert [each.code for each in proxy.requests if each.call.resource == "namespaces"] == [429, 200]

    def test_dropped_before(self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str) -> None:
        proxy.add(DropBefore(), verb="create", times=1)
        with pytest.raises(OSError, match=DROPPED):
            through.post(maps, config_map("a"))
        assert not exists(control_plane, maps, "a")
        assert proxy.requests[-1].code == 0

    def test_dropped_after(self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str) -> None:
        proxy.add(DropAfter(), verb="create", times=1)
        with pytest.raises(OSError, match=DROPPED):
            through.post(maps, config_map("a"))
        assert exists(control_plane, maps, "a")

    @pytest.mark.parametrize("fault", [Delay(0.3), DelayAnswer(0.3)], ids=["before", "after"])
    def test_slow(self, through: Rest, proxy: FaultProxy, maps: str, fault: Delay | DelayAnswer) -> None:
        proxy.add(fault, resource="configmaps")
        began = time.monotonic()
        through.get(maps)
        assert time.monotonic() - began >= 0.3

    def test_only_selected_requests_get_a_fault(self, through: Rest, proxy: FaultProxy, maps: str) -> None:
        rule = proxy.add(Refuse(500), verb="create", resource="configmaps", when=None, skip=1, times=1)
        through.post(maps, config_map("first"))
        with pytest.raises(Refused):
            through.post(maps, config_map("second"))
        through.post(maps, config_map("third"))
        assert rule.hits == 1
        proxy.add(Refuse(500), name="fou.*", verb="get")
        through.get(f"{maps}/third")
        with pytest.raises(Refused, match="500"):
            through.get(f"{maps}/fourth")
        proxy.clear()
        with pytest.raises(Refused, match="404"):
            through.get(f"{maps}/fourth")


def follow(control_plane: ControlPlane, maps: str) -> dict[str, str]:
    """Return the query of a watch from now on; it skips other objects of the namespace."""
    query = {"labelSelector": "follow"}
    version = control_plane.rest.get(maps, query)["metadata"]["resourceVersion"]
    return {**query, "watch": "true", "resourceVersion": version}


class TestWatches:
    def make(self, control_plane: ControlPlane, maps: str, count: int) -> None:
        for number in range(count):
            labelled = {"metadata": {"name": f"watched-{number}", "labels": {"follow": "yes"}}}
            control_plane.rest.post(maps, labelled)

    def read(self, watching: BaseHTTPResponse) -> list[str]:
        """Return the types of the events until the stream ends."""
        return [json.loads(line)["type"] for line in watching.read().splitlines()]

    def test_cut_after_some_events(
        self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str
    ) -> None:
        proxy.add(CutWatch(after_events=2), verb="watch", resource="configmaps")
        with through.open_watch(maps, follow(control_plane, maps)) as watching:
            self.make(control_plane, maps, 3)
            assert self.read(watching) == ["ADDED", "ADDED"]

    def test_expired(self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str) -> None:
        proxy.add(ExpireWatch(after_events=1), verb="watch", resource="configmaps")
        with through.open_watch(maps, follow(control_plane, maps)) as watching:
            self.make(control_plane, maps, 2)
            assert self.read(watching) == ["ADDED", "ERROR"]

    def test_refused_with_410(self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str) -> None:
        proxy.add(Refuse(410, "Expired"), verb="watch", resource="configmaps", times=1)
        seen: list[str] = []
        with Watch(through, maps, lambda _, each: seen.append(each["metadata"]["name"])):
            control_plane.rest.post(maps, config_map("late"))
            # The client lists again and resumes.
            wait_until(lambda: "late" in seen, "the event")
        assert proxy.count("list", "configmaps") >= 2

    def test_hidden_deletions(self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str) -> None:
        proxy.add(HideEvents("DELETED"), verb="watch", resource="configmaps")
        with through.open_watch(maps, follow(control_plane, maps)) as watching:
            self.make(control_plane, maps, 2)
            control_plane.rest.delete(f"{maps}/watched-0")
            control_plane.rest.patch(f"{maps}/watched-1", {"data": {"end": "now"}})
            kinds: list[str] = []
            for kind, _ in changes(watching, threading.Event()):
                kinds.append(kind)
                if kind == "MODIFIED":
                    # The last event has arrived: no more are in flight.
                    assert proxy.cut_watches("configmaps") == 1
            assert kinds == ["ADDED", "ADDED", "MODIFIED"]

    def test_cut_now(self, control_plane: ControlPlane, through: Rest, proxy: FaultProxy, maps: str) -> None:
        seen: list[str] = []
        with Watch(through, maps, lambda _, each: seen.append(each["metadata"]["name"])):
            wait_until(lambda: proxy.cut_watches("configmaps") == 1, "an open watch")
            assert proxy.cut_watches("secrets") == 0
            control_plane.rest.post(maps, config_map("afterwards"))
            wait_until(lambda: "afterwards" in seen, "the event, through a new watch")


@pytest.mark.parametrize(
    ("method", "path", "watch", "verb", "resource", "subresource", "namespace", "name"),
    [
        ("GET", "/api/v1/pods", False, "list", "pods", "", "", ""),
        ("GET", "/api/v1/pods", True, "watch", "pods", "", "", ""),
        ("GET", "/api/v1/namespaces", False, "list", "namespaces", "", "", ""),
        ("GET", "/api/v1/namespaces/a", False, "get", "namespaces", "", "", "a"),
        ("PUT", "/api/v1/namespaces/a/finalize", False, "update", "namespaces", "finalize", "", "a"),
        ("GET", "/api/v1/namespaces/a/pods/b/log", False, "get", "pods", "log", "a", "b"),
        ("POST", "/apis/batch/v1/namespaces/a/jobs", False, "create", "jobs", "", "a", ""),
        ("PATCH", "/apis/x.dev/v1/namespaces/a/jobs/b/status", False, "patch", "jobs", "status", "a", "b"),
        ("DELETE", "/apis/batch/v1/namespaces/a/jobs/b", False, "delete", "jobs", "", "a", "b"),
        ("DELETE", "/api/v1/namespaces/a/pods", False, "deletecollection", "pods", "", "a", ""),
        ("GET", "/version", False, "get", "", "", "", ""),
    ],
)
def test_paths(
    method: str, path: str, watch: bool, verb: str, resource: str, subresource: str, namespace: str, name: str
) -> None:
    read = call(method, path, watch)
    assert (read.verb, read.resource, read.subresource) == (verb, resource, subresource)
    assert (read.namespace, read.name) == (namespace, name)
