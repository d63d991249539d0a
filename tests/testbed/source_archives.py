"""Archives of a job's code, and jobs that name them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage
from tests.jobs import resolved_job

CODE = {"flowers/__init__.py": b"", "flowers/model.py": b"def build(): ...\n", "train.py": b"print('hello')\n"}


def resolved(**given: Any) -> ResolvedJob:
    return resolved_job("flowers", program={"script": {"path": "train.py"}}, data=None, source=given)


def tgz(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def archived(data: bytes, uri: str) -> ResolvedJob:
    storage.write(uri, data)
    return resolved(archive={"uri": uri, "sha256": hashlib.sha256(data).hexdigest()})


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
