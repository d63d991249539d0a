"""A sweep that the board shows: read again only when it has changed."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptraining.board.run_reader import run_id
from mptraining.sweeps.cluster import view as view_of_document
from mptraining.sweeps.folder import SWEEP, SweepFolder
from mptraining.sweeps.importance import importance
from mptraining.sweeps.view import SweepView
from mptraining_api.problems import InvalidData, Problem


class ShownSweep:
    """One state of a sweep; `version` is another text whenever the sweep has changed.

    `folder` is None for a sweep on a cluster, whose `namespace` is given instead. Thread-safe.
    """

    def __init__(
        self,
        id: str,
        version: str,
        view: SweepView,
        *,
        folder: str | None,
        namespace: str | None,
        commands: Sequence[str],
    ) -> None:
        self.id = id
        self.version = version
        self.view = view
        self.folder = folder
        self.namespace = namespace
        self.commands = tuple(commands)
        self._importance: dict[str, float] | None = None
        self._lock = threading.Lock()

    def importance(self) -> dict[str, float]:
        """Return the importance of each parameter; empty if it is unknown, as without Optuna."""
        with self._lock:
            if self._importance is None:
                try:
                    self._importance = importance(self.view)
                except Problem:
                    self._importance = {}
            return self._importance


def read_sweep(folder: str, known: Mapping[str, ShownSweep]) -> ShownSweep:
    """Return the sweep in a folder; the known one if it has not changed. Raises InvalidData."""
    id = run_id(f"{folder}/{SWEEP}")
    try:
        stat = os.stat(f"{folder}/{SWEEP}")  # noqa: PTH116 - asked twice a second
    except OSError as error:
        raise InvalidData(f"{folder}/{SWEEP}", error.strerror or "cannot be read") from None
    # Every write is a new file.
    version = f"{stat.st_mtime_ns}-{stat.st_ino}-{stat.st_size}"
    before = known.get(id)
    if before is not None and before.version == version:
        return before
    stored = SweepFolder(Path(folder)).read()
    if stored is None:
        raise InvalidData(f"{folder}/{SWEEP}", "was deleted")
    commands = [shlex.join(["mptj", "sweep", verb, folder]) for verb in ("compare", "apply")]
    return ShownSweep(id, version, SweepView(*stored, folder), folder=folder, namespace=None, commands=commands)


def cluster_sweep(
    document: Mapping[str, Any], cluster: str, known: Mapping[str, ShownSweep], flags: Sequence[str]
) -> ShownSweep:
    """Return a sweep of a cluster; the known one if it has not changed. Raises ClusterProblem."""
    metadata = document["metadata"]
    namespace, name = str(metadata.get("namespace")), str(metadata["name"])
    id = run_id(f"sweep/{metadata['uid']}")
    before = known.get(id)
    if before is not None and before.version == metadata["resourceVersion"]:
        return before
    commands = [shlex.join(["mptj", "sweep", verb, name, *flags]) for verb in ("compare", "apply")]
    seen = view_of_document(document, cluster)
    return ShownSweep(id, metadata["resourceVersion"], seen, folder=None, namespace=namespace, commands=commands)
