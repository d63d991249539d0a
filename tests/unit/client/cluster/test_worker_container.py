"""Commands in a worker's container and a forwarded port; a socket pair stands for the way through the API server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websocket import WebSocket

from mptraining.cluster import worker_container
from mptraining.cluster.errors import ClusterProblem, NoLogs, Unreachable
from mptraining.cluster.job_view import view
from mptraining.cluster.worker_container import NotRunning
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.status import ATTEMPT, COMPLETION_INDEX
from tests.unit.client.cluster.test_job_view import condition

Kubelet = Callable[[WebSocket], None]


def exit_with(code: int) -> dict[str, Any]:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


@contextmanager
def connected(kubelet: Kubelet) -> Iterator[WebSocket]:
    """Yield the client's end of a connection to `kubelet`, which runs in a thread."""
    ends = []
    for end in socket.socketpair():
        ends.append(WebSocket())
        ends[-1].sock, ends[-1].connected = end, True
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(kubelet, ends[1])
        try:
            yield ends[0]
        finally:
            ends[0].sock.close()
            done.result(60)
            ends[1].sock.close()


def finish(stream: WebSocket, status: dict[str, Any]) -> None:
    stream.send_binary(b"\x03" + json.dumps(status).encode())


@contextmanager
def files(folder: Path, content: bytes = b"") -> Iterator[tuple[int, int, int]]:
    """Yield standard input with that content, output and errors."""
    (folder / "in").write_bytes(content)
    flags = {"in": os.O_RDONLY, "out": os.O_WRONLY | os.O_CREAT, "err": os.O_WRONLY | os.O_CREAT}
    opened = [os.open(folder / name, flag) for name, flag in flags.items()]
    try:
        yield opened[0], opened[1], opened[2]
    finally:
        for file in opened:
            os.close(file)


def test_a_pipe_carries_input_to_its_end_output_errors_and_the_exit_code(tmp_path: Path) -> None:
    """More than the buffers of both ends hold, as through `cat`."""
    sent = os.urandom(3_000_000)

    def cat(stream: WebSocket) -> None:
        stream.send_binary(b"\x02a warning\n")
        while (frame := stream.recv()) != b"\xff\x00":
            stream.send_binary(b"\x01" + frame[1:])
        finish(stream, exit_with(3))

    with files(tmp_path, sent) as opened, connected(cat) as stream:
        assert worker_container.exchange(stream, "pod", opened, terminal=False) == 3
    assert (tmp_path / "out").read_bytes() == sent
    assert (tmp_path / "err").read_bytes() == b"a warning\n"


@pytest.mark.parametrize(
    ("kubelet", "end"),
    [
        (lambda stream: finish(stream, {"status": "Success"}), 0),
        (lambda stream: finish(stream, {"status": "Failure", "message": "no such file"}), "no such file"),
        (lambda stream: stream.send_close(), "the connection was closed before the command had ended"),
    ],
)
def test_how_a_command_ends(kubelet: Kubelet, end: int | str, tmp_path: Path) -> None:
    with files(tmp_path) as opened, connected(kubelet) as stream:
        if isinstance(end, int):
            assert worker_container.exchange(stream, "pod", opened, terminal=False) == end
        else:
            with pytest.raises((ClusterProblem, ConnectionError), match=end):
                worker_container.exchange(stream, "pod", opened, terminal=False)


def test_a_reader_that_ends_first_ends_the_command(tmp_path: Path) -> None:
    received, stdout = os.pipe()
    os.close(received)
    with files(tmp_path) as opened, connected(lambda stream: stream.send_binary(b"\x01text")) as stream:
        assert worker_container.exchange(stream, "pod", (opened[0], stdout, opened[2]), terminal=False) == 141
    os.close(stdout)


def test_a_terminal_is_raw_and_the_command_has_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    user, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    frames: list[Any] = []

    def shell(stream: WebSocket) -> None:
        frames.append(stream.recv())
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
        frames.append(stream.recv())
        frames.append(termios.tcgetattr(terminal)[3] & (termios.ICANON | termios.ISIG))
        # Ctrl-C arrives as a byte.
        os.write(user, b"\x03")
        frames.append(stream.recv())
        stream.send_binary(b"\x01^C$ ")
        finish(stream, exit_with(130))

    before = termios.tcgetattr(terminal)
    with connected(shell) as stream, worker_container._raw(terminal):
        assert worker_container.exchange(stream, "pod", (terminal, terminal, terminal), terminal=True) == 130
    sizes = [
        b"\x04" + json.dumps({"Width": width, "Height": height}).encode() for width, height in ((80, 24), (132, 50))
    ]
    assert frames == [*sizes, 0, b"\x00\x03"]
    assert os.read(user, 100) == b"^C$ "
    assert termios.tcgetattr(terminal) == before
    for file in (user, terminal):
        os.close(file)


def test_a_forwarded_port_carries_a_connection_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    over = threading.Event()

    def debugger(stream: WebSocket) -> None:
        for channel in (b"\x00", b"\x01"):
            stream.send_binary(channel + struct.pack("<H", 5678))
        stream.send_binary(b"\x00" + stream.recv()[1:].upper())
        over.wait(60)

    @contextmanager
    def pod_stream(server: Any, *request: Any) -> Iterator[WebSocket]:
        asked.append(request)
        with connected(debugger) as stream:
            yield stream

    monkeypatch.setattr(worker_container, "pod_stream", pod_stream)
    server: Any = None
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with worker_container.forwarded(server, "flowers-1-0-x", port) as local:
            assert local != port, "another program has it"
            with socket.create_connection(("127.0.0.1", local), timeout=60) as connection:
                connection.sendall(b"initialize")
                assert connection.recv(100) == b"INITIALIZE"
            over.set()
    assert asked == [("flowers-1-0-x", "portforward", [("ports", str(port))], "v4.channel.k8s.io")]


class Server:
    """One job, and its pods with the states of their trainers; `states` of the worker 0 change with each request."""

    name = "test-cluster"
    flags: tuple[str, ...] = ()

    def __init__(self, *states: str | None, attempt: int | None = 1, ended: str = "") -> None:
        self.states = list(states)
        conditions = [condition("Running", "Unschedulable", "no machine fits", "False")]
        conditions += [condition(type, ended) for type in ("Finished", "Failed") if ended]
        status = {"phase": "Running", "currentAttempt": attempt, "workers": 2, "conditions": conditions}
        self.document = {"metadata": {"name": "flowers", "uid": "u"}, "spec": {}, "status": status}

    def get(self, resource: Any, name: str) -> dict[str, Any]:
        if self.states[0] == "away":
            self.states.pop(0)
            raise Unreachable("test-cluster", "no answer")
        return self.document

    def command(self, verb: str, name: str) -> str:
        return f"mptj {verb} {name}"

    def items(self, resource: Any, **query: str) -> list[dict[str, Any]]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        containers = [{"name": "trainer", "state": {state: {}}}]
        labels = {ATTEMPT: "1", COMPLETION_INDEX: "0"}
        pod = {"metadata": {"name": "flowers-1-0-x", "uid": "p", "labels": labels}}
        return [] if state is None else [{**pod, "status": {"phase": "Running", "containerStatuses": containers}}]


def running(server: Any, worker: int = 0) -> str:
    return worker_container.running_pod(server, view(server.document), worker).name


@pytest.mark.parametrize(
    ("server", "worker", "kind", "text"),
    [
        (Server(None, attempt=None), 0, NotRunning,
         "worker 0 does not run yet: Unschedulable: no machine fits. See: mptj status flowers"),
        (Server("waiting"), 0, NotRunning, "worker 0 does not run yet"),
        (Server("running"), 1, NotRunning, "worker 1 does not run yet"),
        (Server("running"), 2, NoLogs, "the job has no worker 2; expected one of 0, 1"),
        (Server("terminated"), 0, NotRunning,
         "worker 0 of attempt 1 has ended; the job ends, or starts another attempt. See: mptj status flowers"),
        (Server("terminated", ended="OOMKilled"), 0, NotRunning,
         "the job has ended, OOMKilled: none of its containers runs. See: mptj logs flowers"),
    ],
)  # fmt: skip
def test_a_container_that_does_not_run_is_explained(server: Server, worker: int, kind: Any, text: str) -> None:
    with pytest.raises(kind) as refused:
        running(server, worker)
    assert text in str(refused.value)


def test_the_debugger_is_waited_for_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod's command runs on this machine, where a socket begins to listen while it is asked."""
    monkeypatch.setenv(SOURCE_FOLDER, "/mptraining/files")
    commands: list[Any] = []

    def exec_output(server: Any, pod: str, command: Any, *, container: str) -> Iterator[bytes]:
        commands.append((pod, container))
        yield subprocess.run(command, capture_output=True, check=True).stdout

    said: list[str] = []
    server: Any = Server(None, "away", "waiting", "running", "running")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        monkeypatch.setattr(worker_container, "exec_output", exec_output)
        pauses = iter([*3 * [lambda: None], listener.listen])
        pod, source = worker_container.wait_for_debugger(
            server, "flowers", 0, port, say=said.append, pause=lambda seconds: next(pauses)()
        )
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert (pod.name, source) == ("flowers-1-0-x", "/mptraining/files")
    assert commands == 2 * [("flowers-1-0-x", "trainer")]
    assert [text.partition(".")[0] for text in said] == [
        "waiting: worker 0 does not run yet: Unschedulable: no machine fits",
        "warning: test-cluster: no answer The request is retried",
        "waiting: worker 0 does not run yet: Unschedulable: no machine fits",
        f"waiting until worker 0 listens on port {port}",
    ]
    ended: Any = Server("terminated", ended="ProgramFailed")
    with pytest.raises(NotRunning, match="the job has ended, ProgramFailed"):
        worker_container.wait_for_debugger(ended, "flowers", 0, port, say=said.append, pause=print)


def test_the_configuration_maps_the_job_s_source() -> None:
    configuration = json.loads(worker_container.attach_text("flowers", 5678, "/mptraining/files"))
    assert configuration["connect"] == {"host": "localhost", "port": 5678}
    assert configuration["pathMappings"] == [{"localRoot": "${workspaceFolder}", "remoteRoot": "/mptraining/files"}]
    assert "pathMappings" not in json.loads(worker_container.attach_text("flowers", 5678, ""))
