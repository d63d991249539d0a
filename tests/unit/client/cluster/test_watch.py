"""One list and one watch of a kind of objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import NotAllowed
from mptraining.cluster.watch import ClusterWatch
from mptraining_api.kubernetes_api import JOBS, Raw, Resource


def item(name: str, version: str = "1") -> Raw:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version}}


class Server(ApiServer):
    """Lists `items` at version 10 and sends `changes`; remembers the requests."""

    def __init__(self) -> None:
        super().__init__(None, name="test-cluster", namespace="team")
        self.items_listed = [item("flowers")]
        self.changes: list[Raw] = []
        self.requests: list[str] = []
        self.now, self.watch_seconds = 1000.0, 60.0

    def clock(self) -> float:
        return self.now

    def collection(self, resource: Resource, *, everywhere: bool = False, **_: str) -> tuple[list[Raw], str]:
        self.requests.append("list")
        return self.items_listed, "10"

    def watch(self, resource: Resource, since: str, *, everywhere: bool = False, seconds: int = 60) -> Iterator[Raw]:
        self.requests.append(f"watch since {since}")
        yield from self.changes
        self.now += self.watch_seconds


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watch(server: Server) -> ClusterWatch:
    """A watch after its list."""
    watch = ClusterWatch(server, JOBS, clock=server.clock, everywhere=False)
    watch.list()
    return watch


def names(watch: ClusterWatch) -> set[str]:
    return {found["metadata"]["name"] for found in watch.objects()}


def test_a_watch_continues_from_the_list_and_from_its_last_change(server: Server, watch: ClusterWatch) -> None:
    server.changes = [
        {"type": "ADDED", "object": item("rockets", "11")},
        {"type": "DELETED", "object": item("flowers", "12")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "13"}}},
    ]
    watch.watch()
    assert names(watch) == {"rockets"}
    watch.watch()
    assert server.requests == ["list", "watch since 10", "watch since 13"]


@pytest.mark.parametrize(("seconds", "pause"), [(60.0, 0.0), (0.1, 3.0)])
def test_only_a_short_watch_is_followed_by_a_pause(
    server: Server, watch: ClusterWatch, seconds: float, pause: float
) -> None:
    server.watch_seconds = seconds
    assert watch.turn() == pause


@pytest.mark.parametrize(("code", "problem"), [(410, None), (500, "broken")])
def test_a_version_that_is_too_old_is_followed_by_a_new_list(
    server: Server, watch: ClusterWatch, code: int, problem: str | None
) -> None:
    server.changes = [{"type": "ERROR", "object": {"code": code, "message": "broken"}}]
    watch.watch()
    assert (watch.problem, names(watch)) == (problem, {"flowers"}), "what was known stays until the list"
    server.items_listed = [item("rockets")]
    watch.list()
    assert (watch.problem, names(watch)) == (None, {"rockets"})


def test_an_optional_kind_that_may_not_be_listed_is_empty(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise NotAllowed("test-cluster", "may not list")

    monkeypatch.setattr(server, "collection", refused)
    required, optional = (
        ClusterWatch(server, JOBS, clock=server.clock, everywhere=False, optional=optional)
        for optional in (False, True)
    )
    assert required.turn() == 3
    optional.list()
    assert (required.problem, optional.problem) == ("test-cluster: may not list", None)
