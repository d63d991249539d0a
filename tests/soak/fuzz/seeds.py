"""Inputs to begin with: valid ones of each kind, written by the project itself."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
from PIL import Image
from safetensors.numpy import save

from mptraining_records.tfrecord import example, framing

ROOT = Path(__file__).resolve().parents[3]


def of(target: str) -> list[bytes]:
    found = {
        "tfrecord": _tfrecords,
        "compressed": _tfrecords,
        "example": _examples,
        "sidecar": _sidecars,
        "manifest": _manifests,
        "archive": _archives,
        "report": _reports,
        "events": _reports,
        "token": _tokens,
        "job-file": _job_files,
        "runtimes": _runtimes,
        "stored-job": _stored_jobs,
        "pod": _pods,
        "checkpoint-state": _states,
        "checkpoint-arrays": _arrays,
    }
    return list(found[target]())


def _examples() -> Iterator[bytes]:
    yield example.encode({"label": 1, "x": np.arange(3, dtype=np.float32), "name": b"abc"})
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        Image.new("RGB", (3, 2)).save(file, kind)
        yield example.encode({"image": file.getvalue(), "label": 0})
    # dtype float32, shape [2], 8 bytes: as tf.io.serialize_tensor writes it.
    yield example.encode({"tensor": b"\x08\x01\x12\x04\x12\x02\x08\x02\x22\x08" + bytes(8)})


def _tfrecords() -> Iterator[bytes]:
    frames = [framing.encode(each) for each in (b"", b"record", b"x" * 40, *_examples())]
    yield b"".join(frames)
    yield frames[1] + b"damage" + frames[2] + frames[1]
    yield frames[2][:-3]
    yield gzip.compress(b"".join(frames), mtime=0)


def _sidecars() -> Iterator[bytes]:
    lengths = np.array([10, 20, 30], "<i8").tobytes()
    for damaged in ([], [[1, 26, "cut", 36]]):
        header = {"version": "1", "size": 108, "checksum": 5, "damaged": damaged}
        yield json.dumps({**header, "lengths_crc32c": google_crc32c.value(lengths)}).encode() + b"\n" + lengths


def _manifests() -> Iterator[bytes]:
    file = {"name": "train-00000-of-00001.tfrecord", "records": 3, "bytes": 100, "crc32c": 7}
    image = {"name": "image", "dtype": "uint8", "shape": [None, None, 3], "decode": "png"}
    label = {"name": "label", "dtype": "int64", "shape": []}
    split = {"name": "train", "features": [image, label], "label": "label", "classes": ["a", "b"], "records": 3}
    more = {"class_counts": [1, 2], "label_correlation": 0.1}
    yield json.dumps({"version": 1, **split, "files": [file], **more}).encode()


def _archives() -> Iterator[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        kinds = {"a": tarfile.DIRTYPE, "a/b.py": tarfile.REGTYPE, "c": tarfile.SYMTYPE, "d": tarfile.LNKTYPE}
        for name, kind in kinds.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, "a/b.py", 5 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"print"))
    yield file.getvalue()
    yield gzip.compress(file.getvalue(), mtime=0)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a/b.py", "print(1)")
        packed.writestr("c/", "")
    yield file.getvalue()


def _reports() -> Iterator[bytes]:
    sender = {"mptraining": 1, "time": 1.5, "attempt": 1, "incarnation": "a", "worker": 0}
    progress = {**sender, "kind": "Progress", "step": 3, "epoch": 1, "totalSteps": 9, "metrics": {"loss": 0.5}}
    more = {"metrics": {"loss": 0.5, "val_loss": 1e300}, "precision": "float32", "examplesPerSecond": 3.5}
    finished = {**sender, "kind": "Finished", "reason": "Completed", "exitCode": 0, "message": "", "keptSeconds": 60}
    for each in (progress, {**progress, **more}, finished, {**finished, "metrics": {"loss": 1}, "step": 9}):
        yield json.dumps(each).encode()


def _tokens() -> Iterator[bytes]:
    yield b"Bearer eyJhbGciOiJub25lIn0.eyJleHAiOjE3MDAwMDAwMDB9.c2ln"
    yield b'{"exp": 1700000000, "sub": "a"}'


def _job_files() -> Iterator[bytes]:
    for path in sorted(
        [*(ROOT / "manifests" / "examples").rglob("*.yaml"), ROOT / "examples" / "demo" / "digits.yaml"]
    ):
        yield path.read_bytes()


def _runtimes() -> Iterator[bytes]:
    yield b"runtimes:\n  small:\n    description: one\n    accelerator: {type: cpu}\n"
    yield (ROOT / "charts" / "mptraining" / "values.yaml").read_bytes()


def _stored_jobs() -> Iterator[bytes]:
    import yaml

    for content in _job_files():
        for document in yaml.safe_load_all(content):
            if isinstance(document, dict):
                status = {"phase": "Running", "currentAttempt": 1, "workers": 2, "conditions": [{"type": "Running"}]}
                yield json.dumps({**document, "status": {**status, "progress": {"step": 3}}}, default=str).encode()


def _pods() -> Iterator[bytes]:
    ended = {"exitCode": 1, "reason": "Error", "message": '{"reason": "InvalidData"}'}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}]}
    metadata = {"name": "a", "namespace": "b", "uid": "c", "labels": {"x": "y"}, "resourceVersion": "12"}
    yield json.dumps({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}).encode()


def _states() -> Iterator[bytes]:
    position = {"step": 3, "attempt": 1, "incarnation": "a", "seed": 7, "epoch": 1, "examples": 30, "fingerprint": "f"}
    more = {"policy": "float32", "replicas": 1, "callbacks": {"a": {"b": 1}}, "files": {"m": {"bytes": 1, "crc32c": 2}}}
    yield json.dumps({"version": 1, **position, **more, "fits": [{"epochs": 1, "history": {"loss": [0.5]}}]}).encode()


def _arrays() -> Iterator[bytes]:
    yield save({"0": np.arange(6, dtype=np.float32).reshape(2, 3), "1": np.zeros(2, np.int64)})
    yield save({"0 [rows from 000000000000]": np.zeros((1, 2)), "0 [rows from 000000000001]": np.ones((1, 2))})
