"""Workers find each other before TensorFlow waits; a missing one is named, with its host and the reason."""

from __future__ import annotations

import itertools
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from mptraining_api.launch import WorkerIdentity
from mptraining_api.outcomes import PEER_LOST, by_reason
from mptraining_api.problems import PeerLost, Preempted
from mptraining_trainer.devices.coordination import connection_error, describe_missing, wait_for_peers
from tests.testbed.processes import free_ports


def identity(index: int, hosts: tuple[str, ...]) -> WorkerIdentity:
    return WorkerIdentity(index=index, hosts=hosts, attempt=1, incarnation="a")


@pytest.fixture
def hosts() -> tuple[str, ...]:
    return tuple(f"127.0.0.1:{port}" for port in free_ports(3))


class SimulatedWait:
    """A clock that advances by each wait, and the messages; SIGTERM arrives at `leave` seconds."""

    def __init__(self, leave: float = float("inf")) -> None:
        self.seconds = 0.0
        self.leave = leave
        self.messages: list[str] = []

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return self.seconds >= self.leave

    def notice(self, topic: str, message: str) -> None:
        assert topic == "WaitingForWorkers"
        self.messages.append(message)


@pytest.mark.parametrize("own_strategy", [False, True])
def test_three_workers_find_each_other_in_any_order(hosts: tuple[str, ...], own_strategy: bool) -> None:
    """Each closes its port when it has seen the others; a late one must still connect, as TensorFlow takes the port
    over.

    A script with its own strategy, or none, takes over nothing: there each must be reached before it closes its port.
    """

    def work(index: int) -> socket.socket | None:
        waiting, clock = threading.Event(), itertools.count()
        wait_for_peers(
            identity(index, hosts),
            now=lambda: float(next(clock)) / 100,
            wait=lambda seconds: waiting.wait(0.02),
            notice=lambda topic, message: None,
            deadline=60,
            until_reached=own_strategy,
        )
        # TensorFlow's server.
        port = int(hosts[index].rpartition(":")[2])
        return None if own_strategy else socket.create_server(("127.0.0.1", port))

    with ThreadPoolExecutor(len(hosts)) as pool, ExitStack() as servers:
        working = []
        for index in range(len(hosts)):
            working.append(pool.submit(work, index))
            threading.Event().wait(0.05)
        held = [server for each in working if (server := each.result(120)) is not None]
        for server in held:
            servers.enter_context(server)
    assert len(held) == (0 if own_strategy else 3)


@pytest.mark.parametrize(
    ("error", "until_reached", "message"),
    [("away", False, r"worker 1 \(127.0.0.1"), (None, True, "has not reached this worker yet")],
)
def test_a_worker_that_waits_exits_on_sigterm(
    hosts: tuple[str, ...], error: str | None, until_reached: bool, message: str
) -> None:
    waiting = SimulatedWait(leave=3.0)
    with pytest.raises(Preempted, match=message):
        wait_for_peers(
            identity(0, hosts[:2]),
            now=waiting.now,
            wait=waiting.wait,
            notice=waiting.notice,
            probe=lambda address: error,
            until_reached=until_reached,
        )
    assert waiting.seconds == 3.0


def test_a_missing_worker_is_named_and_after_the_deadline_the_job_fails(hosts: tuple[str, ...]) -> None:
    waiting = SimulatedWait()
    here = hosts[0]
    with pytest.raises(PeerLost) as raised:
        wait_for_peers(
            identity(0, (here, "flowers-1-1.flowers:2222", "flowers-1-2.flowers:2222")),
            now=waiting.now,
            wait=waiting.wait,
            notice=waiting.notice,
            deadline=100,
            probe=lambda address: None if "1-1" in address else "its name is not known to DNS",
        )
    missing = "worker 2 (flowers-1-2.flowers:2222): its name is not known to DNS"
    assert missing in str(raised.value)
    assert "after 100 s" in str(raised.value)
    assert "worker 1" not in str(raised.value)
    assert by_reason(raised.value.reason) == PEER_LOST
    assert waiting.messages == [f"waiting for {missing}"] * 3, "at 10, 40 and 70 s; telemetry says the same words once"


def test_a_taken_port_is_reported_at_once(hosts: tuple[str, ...]) -> None:
    waiting = SimulatedWait()
    with (
        socket.create_server(("", int(hosts[0].rpartition(":")[2]))),
        pytest.raises(PeerLost, match="its port cannot be listened on"),
    ):
        wait_for_peers(identity(0, hosts), now=waiting.now, wait=waiting.wait, notice=waiting.notice)


def test_why_no_worker_is_reached(hosts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    line = describe_missing(dict.fromkeys(range(3, 12), "away"), tuple(f"h{index}:1" for index in range(12)))
    assert line.startswith("worker 3 (h3:1): away; worker 4 ")
    assert line.endswith("; and 4 more")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert connection_error(f"127.0.0.1:{server.getsockname()[1]}") is None
    assert connection_error(hosts[0]) == "its machine answers, the worker does not listen yet"
    for error, expected in (
        (socket.gaierror(-2, "Name or service not known"), "its name is not known to DNS"),
        (TimeoutError(), "no answer within 5 s"),
        (OSError(113, "No route to host"), "No route to host"),
    ):

        def fail(*_: Any, error: OSError = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(socket, "create_connection", fail)
        assert connection_error("flowers-1-2.flowers:2222") == expected
