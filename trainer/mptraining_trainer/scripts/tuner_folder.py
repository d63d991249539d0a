"""Folder of KerasTuner's state in the run folder; with a bucket, a local copy that is kept equal to it.

KerasTuner writes its state with TensorFlow's file system, whose access to buckets has settings and credentials of its
own. So a tuner writes to a local folder, and the trainer copies what has changed with its own storage.
"""

from __future__ import annotations

import functools
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from mptraining_api import run_folder
from mptraining_storage import storage

# The training steps of the trials so far.
STEPS_FILE = "steps.json"
_PART = ".part"


class TunerFolder:
    """The folder `tuner/` of a run folder, as KerasTuner sees it in `local`.

    `exit_stack` deletes the local copy of a bucket.
    """

    def __init__(self, run: str, exit_stack: ExitStack) -> None:
        self.uri = storage.join(run, run_folder.TUNER)
        self._remote = storage.is_remote(self.uri)
        self._exit_stack = exit_stack
        # Version of each file in the bucket, and time and size of its local copy: the state when they were equal.
        self._versions: dict[str, str] = {}
        self._copies: dict[str, tuple[int, int]] = {}

    @functools.cached_property
    def local(self) -> Path:
        """The folder as KerasTuner sees it; created with the first tuner."""
        if not self._remote:
            return storage.local_path(self.uri).resolve()
        return Path(self._exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="mptraining-")))

    def download(self, *, only: str = "") -> None:
        """Copy what has changed in the bucket to `local`, with `only` files of that name. Raise StorageUnavailable."""
        if not self._remote:
            return
        for stored in storage.list_objects(self.uri):
            name = stored.uri.removeprefix(f"{self.uri}/")
            if self._versions.get(name) == stored.version or (only and stored.name != only):
                continue
            path = self.local / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.download(stored.uri, path)
            self._versions[name], self._copies[name] = stored.version, _state(path)

    def upload(self) -> None:
        """Copy changed local files to the bucket, the oracle's state last. Raise StorageUnavailable."""
        if not self._remote:
            return
        files = {path.relative_to(self.local).as_posix(): path for path in self.local.rglob("*") if path.is_file()}
        # A trial counts as complete by the oracle's state, so its files must be there first.
        for name in sorted(files, key=lambda name: (PurePosixPath(name).name == "oracle.json", name)):
            if name.endswith(_PART):
                continue
            state = _state(files[name])
            if self._copies.get(name) != state:
                self._versions[name] = storage.upload(files[name], storage.join(self.uri, name)).version
                self._copies[name] = state

    def directory(self, written: str, ordinal: int) -> Path:
        """Return the directory of a tuner with this relative directory; `ordinal` counts its overwrites from 1."""
        base = self.local / written
        return base if ordinal == 1 else base.with_name(f"{base.name}-{ordinal}")

    def read_steps(self) -> int:
        """Return the training steps of the trials of earlier attempts."""
        path = self.local / STEPS_FILE
        return int(json.loads(path.read_bytes())["steps"]) if path.exists() else 0

    def write_steps(self, steps: int) -> None:
        """Store the training steps of the trials so far."""
        self.local.mkdir(parents=True, exist_ok=True)
        write_json(str(self.local / STEPS_FILE), {"steps": steps})


def write_json(path: str, content: Any) -> str:
    """Write JSON to a local file and return it, as KerasTuner's `save_json`, which may leave half of a file."""
    text = json.dumps(content)
    part = Path(f"{path}{_PART}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return text


def _state(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_mtime_ns, about.st_size
