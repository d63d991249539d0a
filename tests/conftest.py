"""What all tests share.

Random tests: the same short ones at every `make test`, other and many more in `make soak`. A real object server
(fake-gcs-server) for gs://. And a real Kubernetes control plane (the package `testbed`) for tests with the marker
`cluster`, with a namespace of its own for each test.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from testbed import ControlPlane

# Other programs share the processor, so that no single example has a deadline.
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("short", derandomize=True, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("soak", max_examples=2000, deadline=None, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile("short")

SERVER = Path(__file__).parents[1] / "build" / "bin" / "fake-gcs-server"
_bucket_numbers = itertools.count()
_namespace_numbers = itertools.count()


@pytest.fixture(scope="session")
def object_server() -> Iterator[str]:
    """The address of a fake-gcs-server that keeps its objects in memory."""
    if not SERVER.exists():
        if shutil.which("go") or os.environ.get("CI"):
            pytest.fail(f"no {SERVER.name}: run `make servers`")
        pytest.skip(f"no {SERVER.name}, and no Go to build it with")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    options = {
        "backend": "memory",
        "scheme": "http",
        "host": "127.0.0.1",
        "port": port,
        "public-host": address,
    }
    process = subprocess.Popen(
        [SERVER, *(f"-{name}={value}" for name, value in options.items())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    started = threading.Event()

    def follow() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if b"server started" in line:
                started.set()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        assert started.wait(20), "fake-gcs-server did not start"
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(10)
        follower.join(10)
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture
def bucket(object_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a new, empty bucket."""
    name = f"bucket-{next(_bucket_numbers)}"
    request = urllib.request.Request(
        f"{object_server}/storage/v1/b?project=test",
        data=json.dumps({"name": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", object_server)
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
    return f"gs://{name}"


@pytest.fixture(scope="session")
def control_plane_servers() -> None:
    """For tests with a ControlPlane of their own: its programs are there, or the test is left out and says why."""
    needs_control_plane()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server and controller manager with the CRD applied: three seconds, once. Do not stop or slow them:
    a test that wants that starts a ControlPlane of its own.
    """
    from testbed import ControlPlane

    needs_control_plane()
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as started:
        yield started


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace in which pods can be made."""
    return control_plane.namespace(f"test-{next(_namespace_numbers)}")


def needs_control_plane() -> None:
    """Skips where the servers cannot be had; fails in CI, where nothing may be left out."""
    from testbed import missing

    absent = missing()
    if absent and os.environ.get("CI"):
        pytest.fail(absent)
    if absent:
        pytest.skip(absent)
