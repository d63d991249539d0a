"""The namespace that a run folder belongs to, and where its files are: pure functions of the board's settings.

The board reads with its own rights, and the author of a job chooses `output.uri`. A folder is therefore read
only for the namespace that the settings give it to: naming it in a job of another namespace opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mptraining.board.in_cluster.settings import NAMESPACE, RunFolders
from mptraining_api.resolve.resolve import ClusterSettings

_BUCKET = "gs://"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files of a run folder are: in a bucket (`mount` is empty), or `path` below a mount of the pod."""

    folder: str
    mount: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Owner:
    """A folder of the settings that contains the one asked for; `depth` is the number of its parts."""

    depth: int
    namespace: str
    mount: str


class FolderOwners:
    """The owners of run folders. The deepest of the settings' folders decides; several may be equally deep."""

    def __init__(
        self,
        folders: Sequence[RunFolders],
        *,
        default_output: str | None = None,
        default_outputs: Mapping[str, str] | None = None,
    ) -> None:
        """`default_output` and `default_outputs` are the operator's: those in a bucket are run folders, too."""
        outputs = dict(default_outputs or {})
        self._defaults = ClusterSettings(default_output=default_output, default_outputs=MappingProxyType(outputs))
        self._folders = [(_parts(each.folder), each.namespace, each.mount) for each in folders]
        self._folders += [(_parts(each), name, "") for name, each in outputs.items() if each.startswith(_BUCKET)]
        if default_output is not None and default_output.startswith(_BUCKET):
            self._folders.append(((*_parts(default_output), NAMESPACE), "", ""))

    def run_folder(self, namespace: str, name: str, uri: str | None) -> str | None:
        """Return the run folder of a job, by its output.uri or the operator's settings; None if it has none."""
        if uri is not None:
            return uri
        parent = self._defaults.output(namespace)
        return None if parent is None else f"{parent.rstrip('/')}/{name}"

    def place(self, namespace: str, folder: str) -> Place | None:
        """Return where the run folder of a job of that namespace is; None if it does not belong to the namespace."""
        asked = _parts(folder)
        if not asked or {"", ".", ".."} & set(asked[1:]) or "\0" in folder:
            return None
        found = [owner for each in self._folders if (owner := _owner(each, asked)) is not None]
        deepest = max((each.depth for each in found), default=0)
        for each in found:
            if each.depth == deepest and each.namespace == namespace:
                path = asked[each.depth :] if each.mount else ()
                return Place(folder.rstrip("/"), each.mount, path)
        return None


def _owner(folder: tuple[tuple[str, ...], str, str], asked: tuple[str, ...]) -> _Owner | None:
    parts, namespace, mount = folder
    if len(parts) > len(asked):
        return None
    for part, given in zip(parts, asked, strict=False):
        if part == NAMESPACE:
            namespace = given
        elif part != given:
            return None
    return _Owner(len(parts), namespace, mount)


def _parts(folder: str) -> tuple[str, ...]:
    """Split into the storage (gs:// or /) and the parts of the path; empty for another kind of storage."""
    if folder.startswith(_BUCKET):
        return (_BUCKET, *folder.removeprefix(_BUCKET).rstrip("/").split("/"))
    if re.match(r"/[^/]", folder):
        return ("/", *folder.strip("/").split("/"))
    return ()
