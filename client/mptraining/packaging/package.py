"""What is shipped to a job: source files as text, packed the same way every time, named by their content.

    files ──► .tgz, its SHA-256 ──► at most CONFIG_MAP_BYTES   in a ConfigMap that the job owns
                                    more                       in a bucket, as <sha256>.tgz

Nothing is pickled: the notebook's Python may be another one than the trainer's. In the pod the trainer's `source`
verifies the digest before it unpacks anything.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mptraining_api.problems import InvalidProgram

# Kubernetes refuses a ConfigMap of more than 1 MiB; base64 in the request makes four bytes of three.
CONFIG_MAP_BYTES = 700_000
# The trainer unpacks at most 512 MiB packed. This is unpacked and far above any program: what is larger is data.
MOST_BYTES = 256_000_000
MOST_FILES = 10_000
# The entry of the ConfigMap that the trainer unpacks (`mptraining_api.spec_program`, whose import takes pydantic).
ARCHIVE_KEY = "source.tgz"
IGNORE_FILE = ".mptrainingignore"

_TO_THE_BUCKET = "Data belongs into a bucket: read it from gs:// in the program"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file; `path` is relative to the source's root, with slashes."""

    path: str
    content: bytes
    executable: bool = False

    @classmethod
    def of_text(cls, path: str, text: str) -> SourceFile:
        return cls(path, text.encode("utf-8"))


@dataclass(frozen=True, slots=True)
class Package:
    """The source of one job.

    `files` stand in the order of their paths; `archive` is all of them as .tgz, the same bytes for the same files.
    `program` is the job's section `spec.program`. `requirements` is the path of a requirements file among `files`.
    `notes` are for the user: what was left out or read differently.
    """

    files: tuple[SourceFile, ...]
    archive: bytes
    sha256: str
    program: Mapping[str, Any]
    requirements: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return len(self.archive)

    @property
    def small(self) -> bool:
        """Whether a ConfigMap holds it; else it needs a bucket."""
        return self.size <= CONFIG_MAP_BYTES

    def source(self, *, config_map: str | None = None, uri: str | None = None) -> dict[str, Any]:
        """The job's section `spec.source`, with the archive in that ConfigMap or at that URI."""
        where = (
            {"configMap": {"name": config_map, "sha256": self.sha256}}
            if config_map is not None
            else {"archive": {"uri": uri, "sha256": self.sha256}}
        )
        return where if self.requirements is None else {**where, "requirements": self.requirements}

    def entries(self) -> dict[str, str]:
        """`binaryData` of the ConfigMap that holds the archive. Raises InvalidProgram when it is too large for one."""
        if not self.small:
            raise too_large(self)
        return {ARCHIVE_KEY: base64.b64encode(self.archive).decode()}

    @property
    def object_name(self) -> str:
        """The name of the archive in a bucket: its content's."""
        return f"{self.sha256}.tgz"


def package(
    files: Iterable[SourceFile],
    *,
    program: Mapping[str, Any],
    requirements: str | None = None,
    notes: Iterable[str] = (),
) -> Package:
    """Packs the files. Raises InvalidProgram for two files of one path, one that leads out, and for too many bytes."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    _check(ordered)
    archive = _packed(ordered)
    digest = hashlib.sha256(archive).hexdigest()
    return Package(ordered, archive, digest, dict(program), requirements, tuple(notes))


def refuse_size(sizes: Mapping[str, int]) -> None:
    """Raises InvalidProgram naming the biggest of these files (path -> bytes) when they are no program any more.

    It is asked before anything is read: a folder of data may be larger than memory.
    """
    total = sum(sizes.values())
    if total <= MOST_BYTES and len(sizes) <= MOST_FILES:
        return
    what = f"{len(sizes):,} files, {_amount(total)}"
    raise InvalidProgram(
        "source",
        f"{what}; the biggest: {_biggest(sizes)}",
        expected=f"at most {_amount(MOST_BYTES)} in {MOST_FILES:,} files",
        next_step=f"{_TO_THE_BUCKET}; what the job does not need goes into {IGNORE_FILE}, in .gitignore's syntax.",
    )


def too_large(package: Package) -> InvalidProgram:
    """That the package does not fit into a ConfigMap and that no bucket was named."""
    sizes = {file.path: len(file.content) for file in package.files}
    return InvalidProgram(
        "source",
        f"{_amount(package.size)} packed, more than a ConfigMap holds; the biggest files: {_biggest(sizes)}",
        expected=f"at most {_amount(CONFIG_MAP_BYTES)} packed without a bucket",
        next_step=f"Leave files out by {IGNORE_FILE}, or name a bucket: output='gs://bucket/folder'.",
    )


def _biggest(sizes: Mapping[str, int]) -> str:
    first = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))[:5]
    return ", ".join(f"{path} ({_amount(size)})" for path, size in first)


def _amount(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _check(ordered: tuple[SourceFile, ...]) -> None:
    before = None
    for file in ordered:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InvalidProgram("source", f"{file.path!r} leads out of it", expected="a relative path inside")
        if file.path == before:
            raise InvalidProgram("source", f"two files of the path {file.path!r}", next_step="Rename one of them.")
        before = file.path
    refuse_size({file.path: len(file.content) for file in ordered})


def _packed(ordered: tuple[SourceFile, ...]) -> bytes:
    """Owners, times and the machine's own modes are left out, so that equal files make equal bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in ordered:
            member = tarfile.TarInfo(file.path)
            member.size = len(file.content)
            member.mode = 0o755 if file.executable else 0o644
            tar.addfile(member, io.BytesIO(file.content))
    return buffer.getvalue()
