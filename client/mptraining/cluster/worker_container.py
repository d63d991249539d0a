"""A worker's container from this machine: commands on a terminal or in a pipe, and a port for a debugger.

Both use WebSockets through the API server. Commands need the subprotocol v5, the only one in which the end of standard
input can be sent.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from mptraining.cluster.api import (
    ERROR,
    STDERR,
    STDOUT,
    ApiServer,
    CommandFailed,
    exec_output,
    exit_status,
    pod_stream,
    receive,
)
from mptraining.cluster.errors import ClusterProblem, NotFound, Unreachable
from mptraining.cluster.job_view import JobView, reason_text, view
from mptraining.cluster.logs import WorkerPod, pods, require_worker, select_pods
from mptraining_api.kubernetes_api import JOBS
from mptraining_api.launch import SOURCE_FOLDER
from mptraining_api.status import TRAINER_CONTAINER

SHELL = ("/bin/sh", "-c", "exec $(command -v bash || command -v sh)")
_EXEC_PROTOCOL, _PORT_PROTOCOL = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _RESIZE = b"\x00", b"\x04"
_END_OF_STDIN = b"\xff\x00"
# The channel of a forwarded port's data; the next one has errors.
_PORT_DATA = b"\x00"
# Small enough to be sent to a writable socket at once: the loop must not wait for the command to read its input while
# the command waits for the loop to read its output.
_PIECE = 4096
# The terminal's size is compared this often.
_TICK_SECONDS = 0.5
# Proxies close connections without traffic.
_TICKS_PER_PING = 60
_POLL_SECONDS, _WATCH_SECONDS = 1.0, 5.0
# Exit code of a program that is ended by SIGPIPE.
_BROKEN_PIPE = 141


class NotRunning(ClusterProblem):
    """The worker's container does not run."""


def running_pod(server: ApiServer, seen: JobView, worker: int) -> WorkerPod:
    """Return the pod of the worker in the last attempt.

    Raises NoLogs if the job does not have that worker, and NotRunning with the reason and the next step.
    """
    require_worker(seen, worker)
    candidates = select_pods(pods(server, seen.uid), attempt=None, worker=worker)
    for pod in reversed(candidates):
        if pod.running:
            return pod
    verb = "logs" if seen.finished else "status"
    if seen.finished:
        why = f"the job has ended, {reason_text(seen)}: none of its containers runs"
    elif candidates and candidates[-1].started:
        why = f"worker {worker} of attempt {candidates[-1].attempt} has ended; the job ends, or starts another attempt"
    else:
        why = f"worker {worker} does not run yet: {reason_text(seen)}"
    raise NotRunning(seen.name, why, next_step=f"See: {server.command(verb, seen.name)}")


def execute(server: ApiServer, pod: str, command: Sequence[str]) -> int:
    """Run the command in the trainer's container with the input and output of this process; return its exit code.

    It has a terminal if this process has one: a raw one, so that Ctrl-C is the command's, with the same size.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    switches = {"stdin": True, "stdout": True, "stderr": not terminal, "tty": terminal}
    query = [("container", TRAINER_CONTAINER), *((name, str(value).lower()) for name, value in switches.items())]
    query += [("command", word) for word in command]
    with (
        pod_stream(server, pod, "exec", query, _EXEC_PROTOCOL) as stream,
        _raw(sys.stdin.fileno()) if terminal else nullcontext(),
    ):
        return exchange(stream, pod, (0, 1, 2), terminal=terminal)


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    # Windows has neither module.
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def exchange(stream: Any, pod: str, files: tuple[int, int, int], *, terminal: bool) -> int:
    """Exchange data between a WebSocket of `pods/exec` and these file descriptors; return the command's exit code."""
    stdin, stdout, stderr = files
    outputs, to_send, size, quiet = {STDOUT: stdout, STDERR: stderr}, b"", None, 0
    read_stdin = True
    while True:
        if terminal and (current := os.get_terminal_size(stdout)) != size:
            size = current
            stream.send_binary(_RESIZE + json.dumps({"Width": current.columns, "Height": current.lines}).encode())
        sources = [stdin] if read_stdin and not to_send else []
        readable, writable = _ready(stream, sources, bool(to_send))
        quiet = 0 if readable else quiet + 1
        if quiet == _TICKS_PER_PING:
            stream.ping()
            quiet = 0
        if stdin in readable:
            data = os.read(stdin, _PIECE)
            read_stdin, to_send = bool(data), _STDIN + data if data else _END_OF_STDIN
        if writable:
            stream.send_binary(to_send)
            to_send = b""
        received = _receive(stream) if stream in readable else None
        if received is None:
            continue
        channel, data = received
        if channel == ERROR:
            code, message = exit_status(data)
            if code is None:
                raise CommandFailed(pod, message)
            return code
        try:
            while channel in outputs and data:
                data = data[os.write(outputs[channel], data) :]
        except BrokenPipeError:
            return _BROKEN_PIPE


def _ready(stream: Any, sources: Sequence[Any], sending: bool = False) -> tuple[list[Any], bool]:
    """Wait for a tick at most; return those that can be read, and whether the stream can be written."""
    # TLS may hold decrypted bytes, which `select` does not see.
    pending = hasattr(stream.sock, "pending") and stream.sock.pending() > 0
    seconds = 0 if pending else _TICK_SECONDS
    readable, writable, _ = select.select([stream, *sources], [stream] if sending else [], [], seconds)
    return [stream, *readable] if pending and stream not in readable else readable, bool(writable)


def _receive(stream: Any) -> tuple[int, bytes] | None:
    """Return the next frame as `receive`; None also if it is not complete yet."""
    from websocket import WebSocketTimeoutException

    # Bytes that `select` has seen may be TLS's own, after which no data follows.
    stream.settimeout(_TICK_SECONDS)
    try:
        return receive(stream)
    except WebSocketTimeoutException:
        return None
    finally:
        stream.settimeout(None)


def wait_for_debugger(
    server: ApiServer,
    name: str,
    worker: int,
    port: int,
    *,
    say: Callable[[str], None],
    pause: Callable[[float], object],
) -> tuple[WorkerPod, str]:
    """Wait until the worker's program listens on the port; return its pod, and its source folder or "".

    `say` gets each new reason to wait, `pause` waits for some seconds. Raises NotRunning when the job has ended.
    """
    last_text = ""
    while True:
        try:
            seen = view(server.get(JOBS, name), server.flags)
            pod = running_pod(server, seen, worker)
            listens, source = _listening(server, pod.name, port)
            if listens:
                return pod, source
            text = (
                f"waiting until worker {worker} listens on port {port}. Its program runs: "
                f"import debugpy; debugpy.listen({port}); debugpy.wait_for_client()   Or it starts another program by: "
                f"python -m debugpy --listen {port} --wait-for-client FILE"
            )
        except NotRunning as problem:
            if seen.finished:
                raise
            text = f"waiting: {problem.found}"
        except Unreachable as problem:
            text = f"warning: {problem} The request is retried."
        if text != last_text:
            last_text = text
            say(text)
        pause(_POLL_SECONDS)


def _listening(server: ApiServer, pod: str, port: int) -> tuple[bool, str]:
    """Return whether a process of the pod listens on the port, and the folder of the job's source or "".

    The port is not connected to, which would use up the program's wait for a client.
    """
    command = ("/bin/sh", "-c", f'echo "${SOURCE_FOLDER}"; cat /proc/net/tcp*')
    try:
        output = b"".join(exec_output(server, pod, command, container=TRAINER_CONTAINER)).decode()
    except (CommandFailed, NotFound):
        # The container has just ended.
        return False, ""
    source, _, table = output.partition("\n")
    # Columns: number, local address and port, remote ones, state. 0A is LISTEN.
    return re.search(rf"^ *\d+: [0-9A-F]+:{port:04X} \S+ 0A ", table, re.MULTILINE) is not None, source.strip()


def wait_for_end(server: ApiServer, uid: str, pod: WorkerPod, *, pause: Callable[[float], object]) -> None:
    """Wait until the pod's container has ended; a server that does not answer is asked again."""
    while True:
        with suppress(Unreachable):
            if not any(other.uid == pod.uid and other.running for other in pods(server, uid)):
                return
        pause(_WATCH_SECONDS)


def attach_text(name: str, port: int, source: str) -> str:
    """Return the configuration of VS Code's launch.json that attaches to the forwarded port."""
    configuration: dict[str, Any] = {
        "name": f"mptj debug {name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "localhost", "port": port},
    }
    if source:
        configuration["pathMappings"] = [{"localRoot": "${workspaceFolder}", "remoteRoot": source}]
    return json.dumps(configuration)


@contextmanager
def forwarded(server: ApiServer, pod: str, port: int) -> Iterator[int]:
    """Forward a local port to that of the pod: the same if it is free; yield it."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError:
        listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        threading.Thread(target=_accept, args=(listener, server, pod, port), name="port-forward", daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, server: ApiServer, pod: str, port: int) -> None:
    # An error ends it when the listener is closed.
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_forward, args=(connection, server, pod, port), daemon=True).start()


def _forward(connection: socket.socket, server: ApiServer, pod: str, port: int) -> None:
    """Forward one connection until one end closes it, or the pod refuses it."""
    named: set[int] = set()
    query = [("ports", str(port))]
    with connection, suppress(ClusterProblem), pod_stream(server, pod, "portforward", query, _PORT_PROTOCOL) as stream:
        while True:
            readable, _ = _ready(stream, [connection])
            if connection in readable:
                if not (data := connection.recv(2**16)):
                    return
                stream.send_binary(_PORT_DATA + data)
            if stream not in readable or (received := _receive(stream)) is None:
                continue
            channel, data = received
            if channel not in named:
                # The first frame of each channel is the number of the port.
                named.add(channel)
            elif channel == _PORT_DATA[0]:
                connection.sendall(data)
            else:
                return
