"""Where a release is published in tests: the distribution registry and pypiserver, both from `make release-tools`."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tests.testbed.binaries import FOLDER
from tests.testbed.processes import Server

REGISTRY = FOLDER.parent / "release-tools" / "registry"
INDEX = FOLDER.parent / "release-python" / "bin" / "pypi-server"
_SECONDS = 20.0


def missing() -> str | None:
    """Return None if both programs exist, else the command that gets them."""
    absent = [path.name for path in (REGISTRY, INDEX) if not path.exists()]
    return f"no {', '.join(absent)}: run `make release-tools`" if absent else None


def registry(folder: Path, *, port: int, address: str = "127.0.0.1") -> Server:
    """Start a registry that stores everything in a folder. Raises NotStarted."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": f"{address}:{port}"},
        "log": {"level": "error", "accesslog": {"disabled": True}},
    }
    # JSON is YAML.
    file = folder / "registry.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")
    server = Server(
        [REGISTRY, "serve", file], log=folder / "registry.log", environment={"OTEL_TRACES_EXPORTER": "none"}
    )
    server.wait_until(lambda: _answers(f"http://127.0.0.1:{port}/v2/"), seconds=_SECONDS)
    return server


def package_index(folder: Path, *, port: int) -> Server:
    """Start an index that takes uploads without a password, and sends pip to the usual index for other packages.

    Raises NotStarted.
    """
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    anyone = ("--passwords", ".", "--authenticate", ".")
    where = ("--port", str(port), "--interface", "127.0.0.1")
    server = Server([INDEX, "run", *where, *anyone, packages], log=folder / "index.log")
    server.wait_until(lambda: _answers(f"http://127.0.0.1:{port}/simple/"), seconds=_SECONDS)
    return server


def blob(folder: Path, digest: str) -> Path:
    """Return the file in which a registry keeps a blob or a manifest."""
    plain = digest.removeprefix("sha256:")
    return folder / "storage" / "docker" / "registry" / "v2" / "blobs" / "sha256" / plain[:2] / plain / "data"


def _answers(address: str) -> bool:
    with urllib.request.urlopen(address, timeout=2) as answer:
        return bool(answer.status == 200)
