"""fake-gcs-server in a process of its own: real HTTP, real JSON and XML answers, buckets on loopback.

with ObjectServer(folder) as server:
    server.create_bucket("data")
    server.upload("data", "train-0.tfrecord", content)
    server.address                                      # for STORAGE_EMULATOR_HOST
"""

from __future__ import annotations

import json
import tempfile
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testbed.binaries import binary
from tests.testbed.processes import Server, free_ports

OBJECT_SERVER = "fake-gcs-server"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ObjectServer:
    """A context manager; objects are in memory and are lost with the process."""

    def __init__(self, data: Path | None = None, *, folder: Path | None = None) -> None:
        """Every folder in `data` becomes a bucket with the files below it, without a request; the log is in
        `folder`.
        """
        self._data = data
        self._folder = folder
        self._ends = ExitStack()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        return f"http://127.0.0.1:{self._port}"

    def create_bucket(self, name: str) -> str:
        """Create a bucket; return its URI. Names have three characters at least."""
        self._ask("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode(), "application/json")
        return f"gs://{name}"

    def upload(self, bucket: str, key: str, content: bytes) -> None:
        """Write or replace an object."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", content, "application/octet-stream")

    def _ask(self, method: str, target: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(
            self.address + target, data=body, method=method, headers={"Content-Type": kind}
        )
        _direct.open(request, timeout=60).close()

    def __enter__(self) -> Self:
        with self._ends as starting:
            folder = self._folder or Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="object-server-")))
            (self._port,) = free_ports(1)
            options = {
                "backend": "memory",
                "scheme": "http",
                "host": "127.0.0.1",
                "port": self._port,
                "public-host": f"127.0.0.1:{self._port}",
                **({"data": self._data} if self._data else {}),
            }
            command = [str(binary(OBJECT_SERVER)), *(f"-{name}={value}" for name, value in options.items())]
            server = starting.enter_context(Server(command, log=folder / f"{OBJECT_SERVER}.log"))
            server.wait_until(self._answers, seconds=180)
            self._ends = starting.pop_all()
        self.pid = server.pid
        return self

    def _answers(self) -> bool:
        _direct.open(f"{self.address}/storage/v1/b?project=test", timeout=30).close()
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()
