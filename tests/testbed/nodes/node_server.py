"""The kubelet's API for the API server: logs, exec and port-forward of the pods of simulated nodes.

    with NodeServer(folder) as server:
        control_plane.nodes.create("paper", server=server)     # requests for its pods' logs and exec arrive here
        server.log("team-a", "flowers-1-0-x").say("step 1")    # `kubectl logs -f` sees it at once
        server.commands["team-a", "flowers-1-0-x"] = environment
        # `kubectl exec`: the command runs as a process of this machine, in that environment
    # port-forward: the ports of the pods are those of this machine

HTTPS with a certificate of its own: like the API server of a new cluster, this one does not verify it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.testbed.aiohttp_server import AiohttpServer
from tests.testbed.credentials import create_server_keys

_STDOUT, _STDERR, _ERROR = 1, 2, 3
_PORT_DATA, _PORT_ERROR = 0, 1

Place = tuple[str, str]


class Log:
    """A container's output; a follower gets new lines until it is closed."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._closed = False
        self._cuts = 0
        self._changed = threading.Condition()

    def say(self, *lines: str) -> None:
        with self._changed:
            # A nanosecond apart, as a container runtime stamps lines that are written at once.
            now = time.time_ns()
            self._lines += [(_stamp(now + number), line) for number, line in enumerate(lines)]
            self._changed.notify_all()

    def cut(self) -> None:
        """Disconnect the followers, as a proxy with an idle timeout does."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Mark the container as ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def read(self, *, follow: bool, tail: int | None, since: str) -> Iterator[tuple[str, str]]:
        """Return (time, line), from the second `since` on."""
        with self._changed:
            at = 0 if tail is None else max(0, len(self._lines) - tail)
            cuts = self._cuts
        while True:
            with self._changed:
                while follow and at == len(self._lines) and not self._closed and self._cuts == cuts:
                    self._changed.wait()
                some = self._lines[at:]
                at += len(some)
                over = self._closed or not follow or self._cuts != cuts
            yield from (each for each in some if each[0] >= since)
            if over and not some:
                return


class NodeServer(AiohttpServer):
    """A context manager; one serves any number of nodes."""

    def __init__(self, folder: Path) -> None:
        keys = create_server_keys(folder)
        super().__init__(keys.certificate, keys.key)
        self.commands: dict[Place, Mapping[str, str]] = {}
        self.asked: list[list[str]] = []
        self._logs: dict[Place, Log] = {}

    def log(self, namespace: str, pod: str) -> Log:
        """Return the log of the pod's container; empty at first."""
        return self._logs.setdefault((namespace, pod), Log())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for log in self._logs.values():
            log.close()
        super().__exit__(kind, error, trace)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        what, namespace, pod, *_ = request.path.strip("/").split("/")
        if what == "containerLogs":
            return await self._send_log(request, self.log(namespace, pod))
        if what == "exec":
            return await self._exec(request, (namespace, pod))
        if what == "portForward":
            return await self._forward_port(request)
        raise web.HTTPNotFound

    async def _send_log(self, request: web.Request, log: Log) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        query = request.query
        tail = int(query["tailLines"]) if "tailLines" in query else None
        since = query.get("sinceTime", "").removesuffix("Z")
        lines = log.read(follow=query.get("follow") == "true", tail=tail, since=since)
        with suppress(OSError):  # the follower has disconnected
            while line := await asyncio.to_thread(next, lines, None):
                await response.write(f"{' '.join(line) if 'timestamps' in query else line[1]}\n".encode())
        return response

    async def _exec(self, request: web.Request, place: Place) -> web.StreamResponse:
        command = request.query.getall("command")
        self.asked.append(command)
        # The subprotocol of clients; a kubelet since 1.30 knows it too.
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        # The image's `python` is this interpreter.
        program = [sys.executable, *command[1:]] if command[0] == "python" else command
        environment = dict(self.commands.get(place, {}))
        done = await asyncio.to_thread(
            subprocess.run, program, env=environment, capture_output=True, check=False, timeout=240
        )
        for channel, data in ((_STDOUT, done.stdout), (_STDERR, done.stderr)):
            for at in range(0, len(data), 32_768):
                await socket.send_bytes(bytes([channel]) + data[at : at + 32_768])
        await socket.send_bytes(bytes([_ERROR]) + json.dumps(_status(done.returncode)).encode())
        await socket.close()
        return socket

    async def _forward_port(self, request: web.Request) -> web.StreamResponse:
        stream = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await stream.prepare(request)
        port = int(request.query["port"])
        for channel in (_PORT_DATA, _PORT_ERROR):
            await stream.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            await stream.send_bytes(bytes([_PORT_ERROR]) + str(error).encode())
            return stream

        async def send() -> None:
            while data := await reader.read(2**16):
                await stream.send_bytes(bytes([_PORT_DATA]) + data)
            await stream.close()

        sending = asyncio.create_task(send())
        async for message in stream:
            writer.write(message.data[1:])
            await writer.drain()
        writer.close()
        await sending
        return stream


def _stamp(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09}Z"


def _status(code: int) -> dict[str, Any]:
    """Return the status with which a kubelet ends an exec."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}
