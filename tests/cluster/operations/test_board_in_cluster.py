"""The board of a cluster on a real API server, with exactly the rights that the chart gives it, and real tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import document, eventually
from tests.testbed import ControlPlane
from tests.testbed.board_runs import write_run
from tests.testbed.kubernetes.chart import documents, render
from tests.testbed.kubernetes.installation import SYSTEM
from tests.testbed.kubernetes.rest import Refused
from tests.testbed.processes import Server, free_ports

ACCOUNT = "mptraining-operator-board"
HOST = "board.example"
REVIEW_SECONDS = 2.0
JOBS = {"apiGroups": ["mptraining.dev"], "resources": ["mptrainingjobs"], "verbs": ["get", "list"]}
LOGS = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")


@dataclass
class Board:
    """The process of the board; `red` and `blue` are tokens of accounts with rights in the namespace of that name."""

    server: Server
    port: int
    control_plane: ControlPlane
    namespaces: dict[str, str]
    tokens: dict[str, str]

    def ask(self, path: str, token: str = "") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            headers = {"Host": HOST} | ({"Authorization": f"Bearer {token}"} if token else {})
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            is_json = "json" in (answer.headers["Content-Type"] or "")
            return answer.status, json.loads(body) if is_json else body.decode()

    def names(self, token: str) -> set[str]:
        code, found = self.ask("/api/runs", token)
        assert code == 200, found
        return {each["name"] for each in found["runs"]}

    def stream(self, token: str) -> Iterator[str]:
        """Yield the lines of the stream of changes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/api/live", headers={"Host": HOST, "Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            assert answer.status == 200
            while line := answer.readline():
                yield line.decode().rstrip("\n")


@pytest.fixture(scope="module")
def chart_objects() -> list[dict[str, Any]]:
    """The account of the board and its rights, as helm renders them."""
    rendered = documents(render({"board": {"enabled": True, "networkPolicy": {"from": []}}}))
    found = [each for each in rendered if each["kind"] in _KINDS and ACCOUNT in each["metadata"]["name"]]
    assert len(found) == 5
    return found


@pytest.fixture
def start_board(
    installed: ControlPlane, chart_objects: list[dict[str, Any]], tmp_path: Path
) -> Iterator[Callable[..., Board]]:
    """Starts the board over two namespaces, red-N and blue-N, each with a job, a volume and an account."""
    installed.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(chart_objects))
    servers: list[Server] = []

    def start(name: str, *, server: str | None = None, **settings: Any) -> Board:
        namespaces, tokens, folders = {}, {}, []
        for number, team in enumerate(("red", "blue")):
            namespace = namespaces[team] = installed.namespace(f"{team}-{name}")
            tokens[team] = installed.service_account(namespace, "viewer", rules=[JOBS, LOGS])
            volume = tmp_path / team
            write_run(volume / "one", number, 20, random.Random(number))
            folders.append({"namespace": namespace, "folder": "/runs", "mount": str(volume)})
            path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs"
            installed.rest.post(path, document(f"{team}-job", output={"uri": "/runs/one"}))
        (port,) = free_ports(1)
        file = tmp_path / "board.yaml"
        chosen = {"port": port, "hosts": [HOST], "reviewSeconds": REVIEW_SECONDS, "runFolders": folders}
        chosen["namespaces"] = list(namespaces.values())
        file.write_text(yaml.safe_dump(chosen | settings))
        kubeconfig = installed.kubeconfig(f"board-{name}", installed.token(SYSTEM, ACCOUNT), server=server)
        command = [sys.executable, "-m", "mptraining.board.in_cluster", "--settings", str(file)]
        command += ["--kubeconfig", str(kubeconfig), "--host", "127.0.0.1"]
        process = Server(command, log=tmp_path / f"board-{name}.log")
        servers.append(process)
        board = Board(process, port, installed, namespaces, tokens)
        process.wait_until(lambda: board.ask("/readyz")[0] == 200, seconds=120)
        return board

    try:
        yield start
    finally:
        for each in servers:
            each.stop()
            text = each.log.read_text()
            assert "Traceback" not in text, text[-3000:]


def test_accounts_of_two_namespaces_see_their_own_runs(start_board: Callable[..., Board]) -> None:
    board = start_board("own")
    for team, other in (("red", "blue"), ("blue", "red")):
        token = board.tokens[team]
        assert board.names(token) == {f"{team}-job"}
        (row,) = eventually(
            lambda token=token: board.ask("/api/runs", token)[1]["runs"], lambda rows: rows[0]["folder"] == "/runs/one"
        )
        code, drawn = board.ask(f"/api/series?run={row['id']}&name=loss", token)
        assert (code, len(drawn["series"][0]["y"])) == (200, 20)
        assert board.ask(f"/api/run/{row['id']}", board.tokens[other])[0] == 404
        assert board.ask(f"/api/series?run={row['id']}&name=loss", board.tokens[other])[0] == 404
        assert board.ask(f"/api/job/{board.namespaces[other]}/{other}-job", token)[0] == 403
        # Its account may not list pods and events of its namespace.
        code, page = board.ask(f"/api/job/{board.namespaces[team]}/{team}-job", token)
        assert (code, page["run"], page["hidden"]) == (200, row["id"], ["pods", "events"])
    # The board's own token has the rights to read, but none of a user to list.
    own = board.control_plane.token(SYSTEM, ACCOUNT)
    assert board.names(own) == {"red-job", "blue-job"}
    assert board.ask("/api/runs")[0] == 401
    assert board.ask("/api/runs", board.tokens["red"][:-4] + "AAAA")[0] == 401


def test_a_job_appears_and_disappears_without_a_list(start_board: Callable[..., Board]) -> None:
    board = start_board("watch")
    token = board.tokens["red"]
    jobs = f"/apis/mptraining.dev/v1alpha1/namespaces/{board.namespaces['red']}/mptrainingjobs"
    board.control_plane.rest.post(jobs, document("later"))
    eventually(lambda: board.names(token), lambda names: names == {"red-job", "later"})
    board.control_plane.rest.delete(f"{jobs}/red-job")
    eventually(lambda: board.names(token), lambda names: names == {"later"})


def test_a_token_is_for_the_audience_of_the_board(start_board: Callable[..., Board]) -> None:
    board = start_board("audience", audiences=["mptraining-board"])
    namespace = board.namespaces["red"]
    mine = board.control_plane.token(namespace, "viewer", audiences=["mptraining-board"])
    assert board.names(mine) == {"red-job"}
    assert board.ask("/api/runs", board.tokens["red"])[0] == 401
    assert board.ask("/api/runs", board.control_plane.token(namespace, "viewer", audiences=["vault"]))[0] == 401
    # A token for the board opens nothing else.
    with pytest.raises(Refused) as refused:
        board.control_plane.rest_client(mine).get(f"/api/v1/namespaces/{namespace}/pods")
    assert refused.value.code == 401


def test_a_stream_ends_when_its_account_is_deleted(start_board: Callable[..., Board]) -> None:
    board = start_board("stream")
    live = board.stream(board.tokens["red"])
    assert next(live) == ": connected"
    board.control_plane.rest.delete(f"/api/v1/namespaces/{board.namespaces['red']}/serviceaccounts/viewer")
    assert "event: denied" in list(live)
    assert board.ask("/api/runs", board.tokens["red"])[0] == 401
    assert board.names(board.tokens["blue"]) == {"blue-job"}


def test_without_the_api_server_the_board_shows_nothing(
    start_board: Callable[..., Board], installed: ControlPlane
) -> None:
    proxy = installed.fault_proxy()
    with proxy:
        board = start_board("away", server=proxy.url)
        assert board.names(board.tokens["red"]) == {"red-job"}
    code, told = eventually(lambda: board.ask("/api/runs", board.tokens["red"]), lambda found: found[0] != 200)
    assert (code, told["error"]) == (503, "the API server cannot confirm your rights now: try again later")
