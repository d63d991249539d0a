"""A board in a cluster on a socket, beside a fake API server: two teams with a job each, and their users."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mptraining.board import board as sources
from mptraining.board import server
from mptraining.board.in_cluster import job_watch
from mptraining.board.in_cluster.jobs import NamespacedJobs
from mptraining.board.in_cluster.serve import ClusterBoard, listen
from mptraining.board.in_cluster.settings import BoardSettings
from tests.client.board.conftest import Answer
from tests.client.board.in_cluster.fake_kubernetes import OWN_AUDIENCE, FakeKubernetes, job, served
from tests.fakes import Clock
from tests.testbed.board_runs import write_run

HOST = "board.example"
RIGHTS = ("list mptrainingjobs", "get mptrainingjobs", "get pods/log", "list pods", "list events")
NOW = 1767225600.0


@pytest.fixture(scope="module", autouse=True)
def short_periods() -> Iterator[None]:
    """Let boards look for changes more often: a test waits for several periods of a second or half a second each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NamespacedJobs, "seconds", 0.1)
        patch.setattr(sources, "QUIET_SECONDS", 0.05)
        patch.setattr(server, "LIVE_SECONDS", 0.05)
        patch.setattr(server, "CHECK_SECONDS", 0.1)
        patch.setattr(job_watch, "_FIRST_PAUSE", 0.2)
        yield


@dataclass(frozen=True)
class Served:
    """A running board of a cluster; `clock` is that of its cached reviews."""

    port: int
    fake: FakeKubernetes
    clock: Clock
    stop: Callable[[], None]

    def request(
        self, path: str, token: str | None = None, *, method: str = "GET", headers: dict[str, str] | None = None
    ) -> Answer:
        sent = {"Host": HOST} | ({"Authorization": f"Bearer {token}"} if token else {}) | (headers or {})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, headers=sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str, token: str, *, host: str = HOST) -> Any:
        answer = self.request(path, token, headers={"Host": host})
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def wait_for_folder(self, token: str, *, host: str = HOST) -> None:
        """Wait until a run folder of the user's namespace was read."""
        eventually(lambda: any(each["folder"] for each in self.get("/api/runs", token, host=host)["runs"]))

    def names(self, token: str) -> set[str]:
        """Return namespace/name of the jobs in the list of a user."""
        found = self.get("/api/runs", token)["runs"]
        return {f"{each['job']['namespace']}/{each['job']['name']}" for each in found}

    def stream(self, token: str) -> Iterator[tuple[str, Any]]:
        """Yield the server-sent events of the list of a user."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET", "/api/live", headers={"Host": HOST, "Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            assert answer.status == 200
            kind = ""
            while line := answer.readline().decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)
                elif line.startswith(": connected"):
                    yield "connected", None


@contextmanager
def start(fake: FakeKubernetes, **settings: Any) -> Iterator[Served]:
    """Serve a board with these settings, once all its jobs are listed."""
    chosen = BoardSettings.parse({"hosts": [HOST], **settings})
    clock = Clock(NOW)
    with served(fake) as server:
        listening = listen(0, "127.0.0.1")
        port = int(listening.getsockname()[1])
        board = ClusterBoard(chosen, server, listening, clock=clock, monotonic=time.monotonic)
        thread = threading.Thread(target=board.run, daemon=True)
        thread.start()

        def stop() -> None:
            board.stop()
            thread.join(10)
            assert not thread.is_alive()

        running = Served(port, fake, clock, stop)
        try:
            eventually(lambda: board.ready)
            yield running
        finally:
            stop()


def eventually(holds: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def two_teams(folder: Path) -> tuple[FakeKubernetes, dict[str, Any]]:
    """Return the API server of two teams, each with a run on a volume of its own, and the settings that say so.

    The tokens `red` and `blue` are of users with all rights in the namespace of that name, `nobody` is of one without.
    """
    fake = FakeKubernetes(tokens={each: (each, OWN_AUDIENCE) for each in ("red", "blue", "nobody")})
    folders = []
    for number, team in enumerate(("red", "blue")):
        fake.allow(team, team, *RIGHTS)
        volume = folder / team
        write_run(volume / "one", number, 20, random.Random(number))
        (volume / "one" / "logs").mkdir()
        (volume / "one" / "logs" / "1-0.log").write_text(f"output of {team}\n")
        folders.append({"namespace": team, "folder": "/runs", "mount": str(volume)})
        # Both jobs name the same path, which is on another volume in each namespace.
        fake.put(job(team, f"{team}-job", uri="/runs/one"))
    return fake, {"runFolders": folders}


@pytest.fixture
def teams(tmp_path: Path) -> tuple[FakeKubernetes, dict[str, Any]]:
    return two_teams(tmp_path)


@contextmanager
def board_of(teams: tuple[FakeKubernetes, dict[str, Any]]) -> Iterator[Served]:
    fake, settings = teams
    with start(fake, **settings) as running:
        for team in ("red", "blue"):
            running.wait_for_folder(team)
        yield running


@pytest.fixture
def board(teams: tuple[FakeKubernetes, dict[str, Any]]) -> Iterator[Served]:
    """A board for a test that changes tokens, rights or the clock."""
    with board_of(teams) as running:
        yield running


@pytest.fixture(scope="module")
def shared_board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with board_of(two_teams(tmp_path_factory.mktemp("board"))) as running:
        yield running
