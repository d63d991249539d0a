"""What all tests share.

Random tests: the same short ones at every `make test`, other and many more in `make soak`. A real object server
(fake-gcs-server) for gs://. And a real Kubernetes control plane (the package `tests.testbed`), with a namespace of
its own for each test.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.left_out import leave_out

# Before TensorFlow's first line: tests in several folders import it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

if TYPE_CHECKING:
    from tests.testbed import ControlPlane
    from tests.testbed.gcs.object_server import ObjectServer

# Other programs share the processor, so that no single example has a deadline.
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
# The same draws each time: more of them find nothing new. `soak` draws others.
settings.register_profile("short", max_examples=50, derandomize=True, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("soak", max_examples=2000, deadline=None, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile("short")

# Modules are loaded to stay. The collector looks at what tests leave behind, not at TensorFlow's half million objects.
gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what has its marker: tests, and rows of their tables."""
    if not os.environ.get("MPTRAINING_TEST_ALL"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("test_all")])
        items[:] = [item for item in items if not item.get_closest_marker("test_all")]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


_durations: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _durations[report.nodeid] = round(_durations.get(report.nodeid, 0.0) + report.duration, 2)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add the seconds of each test, fixtures included, to build/durations.json."""
    if not hasattr(session.config, "workerinput") and _durations:
        path = session.config.rootpath / "build" / "durations.json"
        path.parent.mkdir(exist_ok=True)
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(before | _durations, indent=0, sort_keys=True), encoding="utf-8")


@pytest.fixture(autouse=True)
def default_policy() -> Iterator[None]:
    """Keras' precision policy is global: the next test in this process starts with the default."""
    yield
    for package in ("keras", "tf_keras"):
        if loaded := sys.modules.get(package):
            loaded.mixed_precision.set_global_policy("float32")


_bucket_numbers = itertools.count()
_namespace_numbers = itertools.count()


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A fake-gcs-server that keeps its objects in memory."""
    from tests.testbed.binaries import binary
    from tests.testbed.gcs.object_server import OBJECT_SERVER, ObjectServer

    if not binary(OBJECT_SERVER).exists():
        if shutil.which("go") or os.environ.get("CI"):
            pytest.fail(f"no {OBJECT_SERVER}: run `make servers`")
        pytest.skip(f"no {OBJECT_SERVER}, and no Go to build it with")
    with ObjectServer() as started:
        yield started


@pytest.fixture
def bucket(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a new, empty bucket."""
    uri = object_server.create_bucket(f"bucket-{next(_bucket_numbers)}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", object_server.address)
    monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
    return uri


@pytest.fixture(scope="session")
def control_plane_servers() -> None:
    """For tests with a ControlPlane of their own: its programs are there, or the test is left out and says why."""
    needs_control_plane()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server and controller manager with the CRD applied: three seconds, once. Do not stop or slow them:
    a test that wants that starts a ControlPlane of its own.
    """
    from tests.testbed import ControlPlane

    needs_control_plane()
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as started:
        yield started


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace in which pods can be made."""
    return control_plane.namespace(f"test-{next(_namespace_numbers)}")


def needs_control_plane() -> None:
    """Skips where the servers cannot be had; fails in CI, where nothing may be left out."""
    from tests.testbed import missing

    if absent := missing():
        leave_out(absent)
