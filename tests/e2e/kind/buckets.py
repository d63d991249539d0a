"""gs:// inside the kind cluster: fake-gcs-server in a pod, with a few records of each example in its memory.

The binary and the data are on the node's disk, so that no image must be built. It has a namespace of its own, because
a job's would refuse such a mount.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from hack.cluster.images import VERSION, engine_of_cluster
from hack.cluster.release import NAME
from mptraining_records.tfrecord import example, framing
from tests.testbed.binaries import binary

NAMESPACE = "kind-buckets"
ADDRESS = f"http://buckets.{NAMESPACE}.svc:4443"
_NODE = f"{NAME}-worker"
_ON_NODE = "/opt/buckets"
CLASSES = 5


def start(kind: Any, folder: Path) -> None:
    """Start the server with the bucket `my-bucket`; `folder` has the files that are copied to the node."""
    data = folder / "data" / "my-bucket"
    for name, image, label in (("flowers", "image", "label"), ("imagenet", "image/encoded", "image/class/label")):
        (data / name).mkdir(parents=True)
        for split, count in (("train", 96), ("val", 48)):
            (data / name / f"{split}-00000.tfrecord").write_bytes(_records(count, image, label))
    shutil.copy(binary("fake-gcs-server"), folder / "server")
    engine = engine_of_cluster()
    engine("exec", _NODE, "rm", "-rf", _ON_NODE)
    engine("cp", str(folder), f"{_NODE}:{_ON_NODE}")
    # Only their owner can read pytest's folders, and the image has another user.
    engine("exec", _NODE, "chmod", "-R", "a+rX", _ON_NODE)
    kind.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=300s")
    kind.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(_objects()))
    kind.kubectl("wait", "-n", NAMESPACE, "pod/buckets", "--for=condition=Ready", "--timeout=300s")


def _records(count: int, image: str, label: str) -> bytes:
    """Write noise of one colour for each class."""
    random = np.random.default_rng(count)
    records = []
    for number in range(count):
        pixels = random.integers(0, 80, (40, 40, 3)) + 30 * (number % CLASSES)
        file = io.BytesIO()
        Image.fromarray(pixels.astype("uint8")).save(file, "JPEG")
        records.append(framing.encode(example.encode({image: file.getvalue(), label: number % CLASSES})))
    return b"".join(records)


def _objects() -> list[dict[str, Any]]:
    listens = ["-scheme=http", "-host=0.0.0.0", "-port=4443", f"-public-host={ADDRESS.removeprefix('http://')}"]
    container = {
        "name": "server",
        "image": f"mptraining/operator:{VERSION}",
        "command": [f"{_ON_NODE}/server", "-backend=memory", f"-data={_ON_NODE}/data", *listens],
        "ports": [{"containerPort": 4443}],
        "readinessProbe": {"httpGet": {"path": "/_internal/healthcheck", "port": 4443}, "periodSeconds": 1},
        "volumeMounts": [{"name": "disk", "mountPath": _ON_NODE, "readOnly": True}],
    }
    spec = {
        "nodeName": _NODE,
        "containers": [container],
        "volumes": [{"name": "disk", "hostPath": {"path": _ON_NODE}}],
    }
    labels = {"app": "buckets"}
    service = {"selector": labels, "ports": [{"port": 4443}]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(labels), "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(labels), "spec": service},
    ]


def _metadata(labels: dict[str, str]) -> dict[str, Any]:
    return {"name": "buckets", "namespace": NAMESPACE, "labels": labels}
