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
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mptraining_api.problems import InvalidProgram

# Kubernetes refuses a ConfigMap of more than 1 MiB; base64 in the request makes four bytes of three.
CONFIG_MAP_BYTES = 700_000
# The trainer unpacks at most 512 MiB packed. This is unpacked and far above any program: what is larger is data.
MOST_BYTES = 256_000_000
MOST_FILES = 10_000
# The entry of the ConfigMap that the trainer unpacks (`mptraining_api.spec`, whose import takes pydantic).
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


# What no job needs, and secrets that no job should get this way. A line `!name` in the ignore file takes one back.
ALWAYS_IGNORED = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.py[cod]",
    ".ipynb_checkpoints/",
    ".venv/",
    "venv/",
    "node_modules/",
    "*.egg-info/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".cache/",
    ".idea/",
    ".vscode/",
    ".DS_Store",
    # Colab's own examples, 55 MB.
    "/sample_data/",
    # Run folders of local jobs.
    "/runs/",
    ".env",
    ".netrc",
    ".ssh/",
    ".aws/",
    ".kube/",
    ".config/",
    ".gnupg/",
    "*.pem",
    "*.key",
)


def read_folder(folder: Path) -> tuple[list[SourceFile], list[str]]:
    """The files below `folder` that are to be shipped, and notes about what was passed over.

    Links to files are followed. Raises InvalidProgram for a folder that is not there, a file that cannot be read, and
    for more than a package takes.
    """
    if not folder.is_dir():
        raise InvalidProgram("source", f"no folder {str(folder)!r}", expected="the folder with the program's code")
    notes: list[str] = []
    found = dict(_walk(folder, notes))
    sizes = {}
    for path, file in found.items():
        try:
            sizes[path] = file.stat().st_size
        except OSError as error:
            raise _unreadable(file, error) from error
    refuse_size(sizes)
    return [read_file(file, path) for path, file in sorted(found.items())], notes


def read_file(file: Path, path: str) -> SourceFile:
    """One file, to be shipped as `path`. Raises InvalidProgram when it cannot be read."""
    try:
        return SourceFile(path, file.read_bytes(), executable=os.access(file, os.X_OK))
    except OSError as error:
        raise _unreadable(file, error) from error


def _walk(folder: Path, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """(path, file) of everything that is not ignored. An ignored folder is not even looked into: it may be huge."""
    from pathspec import GitIgnoreSpec

    try:
        spec = GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *_own_lines(folder)])
    except ValueError as error:
        raise InvalidProgram(IGNORE_FILE, str(error), expected="lines in .gitignore's syntax") from error
    for parent, folders, names in os.walk(folder):
        below = Path(parent).relative_to(folder)
        kept = []
        for name in sorted(folders):
            path = (below / name).as_posix()
            if spec.match_file(f"{path}/"):
                continue
            if Path(parent, name).is_symlink():
                notes.append(f"{path}/ is a link to a folder, which is not followed")
                continue
            kept.append(name)
        folders[:] = kept
        for name in sorted(names):
            path = (below / name).as_posix()
            file = Path(parent, name)
            if spec.match_file(path) or path == IGNORE_FILE:
                continue
            # Sockets and pipes would block; a link whose file is gone has nothing to ship.
            if file.is_file():
                yield path, file
            else:
                notes.append(f"{path} is no file, and is not shipped")


def _own_lines(folder: Path) -> list[str]:
    try:
        return (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(folder / IGNORE_FILE, error) from error


def _unreadable(file: Path, error: Exception) -> InvalidProgram:
    why = getattr(error, "strerror", None) or "not a text file"
    return InvalidProgram(str(file), f"cannot be read: {why}", next_step=f"Mend it, or name it in {IGNORE_FILE}.")
