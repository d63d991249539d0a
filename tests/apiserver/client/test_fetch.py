"""`mptj fetch` against the real API server, in a namespace that enforces the pod security level `restricted`.

A process of the trainer plays each pod: exec requests run its own verbs, on a folder that stands for the claim.
"""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mptraining
from mptraining.cluster.reader_pod import READER_OF
from mptraining_api.problems import InvalidData
from mptraining_api.run_folder import FunctionResult
from tests.testbed import Exit, NodeServer, Waiting

CLAIM = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}


@pytest.fixture(scope="module")
def restricted(installed: Any, new_namespace: Any) -> Iterator[Any]:
    """A namespace with a claim, an operator and a kubelet."""
    ns = new_namespace(installed, "fetched").with_kubelet()
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    ns.rest.patch(f"/api/v1/namespaces/{ns.namespace}", level, kind="application/merge-patch+json")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}, "spec": spec}
    ns.rest.post(f"/api/v1/namespaces/{ns.namespace}/persistentvolumeclaims", claim)
    try:
        ns.operator()
        yield ns
    finally:
        ns.close()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The folder that the claim holds; the jobs mount it at the same path."""
    folder = tmp_path / "volume"
    (folder / "digits" / "model").mkdir(parents=True)
    (folder / "digits" / "job.txt").write_text("{}")
    (folder / "digits" / "model" / "model.json").write_text('{"name": "digits"}')
    (folder / "digits" / "model" / "weights.npz").write_bytes(os.urandom(300_000))
    (folder / "digits" / "function").mkdir()
    value = FunctionResult(raised=False, type="int", pickle=base64.b64encode(pickle.dumps(3)).decode())
    (folder / "digits" / "function" / "result.json").write_text(value.to_json())
    return folder


@pytest.fixture
def run(
    restricted: Any, volume: Path, node_server: NodeServer, use: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., mptraining.Job]:
    """Creates a job whose run folder is on the claim, waits until it has ended, and lets its reader run."""
    ns = restricted
    use(ns.control_plane, ns.namespace)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def start(name: str, claim: str = "runs") -> mptraining.Job:
        mounted = {**CLAIM, "persistentVolumeClaim": {"claimName": claim}}
        template = {"volumes": [mounted], "volumeMounts": [{"name": "runs", "mountPath": str(volume)}]}
        ns.create(
            name, lambda pod: Exit(0), workers=1, output={"uri": f"{volume}/digits"},
            podTemplate={"image": "trainer:1", **template},
        )  # fmt: skip
        ns.phase(name, "Succeeded")
        return mptraining.attach(name)

    return start


def readers(ns: Any, name: str) -> list[Any]:
    found: list[Any] = ns.control_plane.pods.select(ns.namespace, **{READER_OF: name})
    return found


class AnyPod(dict[Any, Any]):
    """The environment of the commands in every pod."""

    def __missing__(self, place: Any) -> dict[str, str]:
        return dict(os.environ)

    def get(self, place: Any, default: Any = None) -> dict[str, str]:
        return dict(os.environ)


def test_a_run_folder_on_a_claim(
    restricted: Any, run: Any, volume: Path, node_server: NodeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_server, "commands", AnyPod())
    seen: list[dict[str, Any]] = []
    job = run("digits")
    watcher = threading.Thread(
        target=lambda: seen.extend(pod.whole for pod in restricted.wait(lambda: readers(restricted, "digits"), bool))
    )
    watcher.start()
    folder = job.fetch(tmp_path / "got")
    watcher.join(60)
    (pod,) = seen
    assert pod["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert pod["spec"]["containers"][0]["image"] == "trainer:1"
    assert readers(restricted, "digits") == [], "it is deleted"
    for name in ("job.txt", "model/model.json", "model/weights.npz"):
        assert (folder / name).read_bytes() == (volume / "digits" / name).read_bytes()
    with pytest.raises(InvalidData, match=r"exists\. Replace it with --overwrite"):
        job.fetch(tmp_path / "got")
    assert job.result() == 3, "by a reader pod too"
    assert sorted(path.name for path in job.save_model(tmp_path / "model").iterdir()) == ["model.json", "weights.npz"]


def test_an_interrupt_deletes_the_pod(restricted: Any, run: Any, tmp_path: Path) -> None:
    run("stopped")
    restricted.kubelet.script, before = (lambda pod: Waiting("ContainerCreating")), restricted.kubelet.script
    command = [sys.executable, "-m", "mptraining", "fetch", "stopped", "--to", "got"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        restricted.wait(lambda: readers(restricted, "stopped"), bool)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
        restricted.kubelet.script = before
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Stopped. Nothing is kept; to fetch again: mptj fetch stopped --to got" in errors
    assert readers(restricted, "stopped") == []
    assert not (tmp_path / "got").exists()
