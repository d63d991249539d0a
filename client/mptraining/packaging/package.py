"""Source package of a job: a reproducible .tgz of its files, named by its SHA-256, with the limits of what it may hold.

    files ──► .tgz, its SHA-256 ──► at most CONFIG_MAP_BYTES   in a ConfigMap that the job owns
                                    more                       in a bucket, as <sha256>.tgz

Nothing is pickled, because the notebook's Python version may differ from the trainer's. In the pod
`mptraining_trainer.job` verifies the digest before it unpacks anything. A folder is read without the files that
`.mptrainingignore` and ALWAYS_IGNORED name.
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

from mptraining.display import text
from mptraining_api.problems import InvalidProgram
from mptraining_api.spec import CONFIG_MAP_ARCHIVE

# Kubernetes rejects a ConfigMap of more than 1 MiB; base64 in the request turns three bytes into four.
CONFIG_MAP_BYTES = 700_000
# Size before compression, far above any program; larger folders contain data. (The trainer accepts archives of at most
# 512 MiB.)
MOST_BYTES = 256_000_000
MOST_FILES = 10_000
IGNORE_FILE = ".mptrainingignore"

_TO_THE_BUCKET = "Put data into a bucket, and read it from gs:// in the program"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file; `path` is relative to the source's root, with slashes."""

    path: str
    content: bytes
    executable: bool = False

    @classmethod
    def of_text(cls, path: str, content: str) -> SourceFile:
        return cls(path, content.encode("utf-8"))


@dataclass(frozen=True, slots=True)
class Package:
    """The source of one job.

    `files` are sorted by path; `archive` is their .tgz, with the same bytes for the same files. `program` is the job's
    section `spec.program`. `requirements` is the path of a requirements file in `files`. `notes` tell the user what
    was skipped or changed.
    """

    files: tuple[SourceFile, ...]
    archive: bytes
    sha256: str
    program: Mapping[str, Any]
    requirements: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.archive)

    @property
    def small(self) -> bool:
        """Return whether the archive fits into a ConfigMap; if not, it needs a bucket."""
        return self.size <= CONFIG_MAP_BYTES

    def source(self, *, config_map: str | None = None, uri: str | None = None) -> dict[str, Any]:
        """Return the job's section `spec.source`, with the archive in that ConfigMap or at that URI."""
        kind, location = ("archive", {"uri": uri}) if config_map is None else ("configMap", {"name": config_map})
        requirements = {} if self.requirements is None else {"requirements": self.requirements}
        return {kind: {**location, "sha256": self.sha256}, **requirements}

    def binary_data(self) -> dict[str, str]:
        """Return `binaryData` of the ConfigMap with the archive. Raises InvalidProgram if it is too large for one."""
        if not self.small:
            raise too_large_problem(self)
        return {CONFIG_MAP_ARCHIVE: base64.b64encode(self.archive).decode()}

    def unpack(self, folder: Path) -> None:
        """Write the files below `folder`, as the trainer unpacks the archive."""
        for file in self.files:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            target.chmod(0o755 if file.executable else 0o644)

    @property
    def object_name(self) -> str:
        """Return the name of the archive in a bucket, which is its SHA-256."""
        return f"{self.sha256}.tgz"


def build_package(
    files: Iterable[SourceFile],
    *,
    program: Mapping[str, Any],
    requirements: str | None = None,
    notes: Iterable[str] = (),
) -> Package:
    """Pack the files. Raises InvalidProgram for duplicate paths, paths outside the folder, and too much data."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    _check(ordered)
    archive = _packed(ordered)
    digest = hashlib.sha256(archive).hexdigest()
    return Package(ordered, archive, digest, dict(program), requirements, tuple(notes))


def check_size(sizes: Mapping[str, int]) -> None:
    """Raise InvalidProgram with the largest of these files (path -> bytes) if there are too many or they are too large.

    Called before any file is read, because a folder of data may be larger than memory.
    """
    total = sum(sizes.values())
    if total <= MOST_BYTES and len(sizes) <= MOST_FILES:
        return
    raise InvalidProgram(
        "source",
        f"{len(sizes):,} files, {text.size(total)}; the biggest: {_biggest(sizes)}",
        expected=f"at most {text.size(MOST_BYTES)} in {MOST_FILES:,} files",
        next_step=f"{_TO_THE_BUCKET}; what the job does not need goes into {IGNORE_FILE}, in .gitignore's syntax.",
    )


def too_large_problem(package: Package) -> InvalidProgram:
    """Return the error for a package that does not fit into a ConfigMap, without a bucket to upload it to."""
    sizes = {file.path: len(file.content) for file in package.files}
    return InvalidProgram(
        "source",
        f"{text.size(package.size)} packed, more than a ConfigMap holds; the biggest files: {_biggest(sizes)}",
        expected=f"at most {text.size(CONFIG_MAP_BYTES)} packed without a bucket",
        next_step=f"Exclude files with {IGNORE_FILE}, or name a bucket: output='gs://bucket/folder'.",
    )


def _biggest(sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:5]
    return ", ".join(f"{path} ({text.size(size)})" for path, size in largest)


def _check(ordered: tuple[SourceFile, ...]) -> None:
    paths = [file.path for file in ordered]
    for path, before in zip(paths, ("", *paths), strict=False):
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or not parts:
            raise InvalidProgram("source", f"{path!r} is outside of it", expected="a relative path inside")
        if path == before:
            raise InvalidProgram("source", f"two files have the path {path!r}", next_step="Rename one of them.")
    check_size({file.path: len(file.content) for file in ordered})


def _packed(ordered: tuple[SourceFile, ...]) -> bytes:
    """Return the .tgz of the files without owners, times and umask-dependent modes: equal files give equal bytes."""
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


# Files that no job needs (also Colab's example data sets of 55 MB, and the run folders of local jobs), and secrets. A
# line `!name` in the ignore file includes one again.
ALWAYS_IGNORED = (
    *(".git/", ".hg/", ".svn/", "__pycache__/", "*.py[cod]", ".ipynb_checkpoints/", ".venv/", "venv/"),
    *("node_modules/", "*.egg-info/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".tox/", ".cache/"),
    *(".idea/", ".vscode/", ".DS_Store", "/sample_data/", "/runs/"),
    *(".env", ".netrc", ".ssh/", ".aws/", ".kube/", ".config/", ".gnupg/", "*.pem", "*.key"),
)


def read_folder(folder: Path) -> tuple[list[SourceFile], list[str]]:
    """Return the files below `folder` to package, and notes about skipped ones.

    Symbolic links to files are followed. Raises InvalidProgram if the folder is missing, a file cannot be read, or the
    limits of a package are exceeded.
    """
    if not folder.is_dir():
        raise InvalidProgram("source", f"no folder {str(folder)!r}", expected="the folder with the program's code")
    notes: list[str] = []
    files = dict(_walk(folder, notes))
    sizes = {}
    for path, file in files.items():
        try:
            sizes[path] = file.stat().st_size
        except OSError as error:
            raise _unreadable(file, error) from error
    check_size(sizes)
    return [read_file(file, path) for path, file in sorted(files.items())], notes


def read_file(file: Path, path: str) -> SourceFile:
    """Read one file, to be packaged as `path`. Raises InvalidProgram if it cannot be read."""
    try:
        return SourceFile(path, file.read_bytes(), executable=os.access(file, os.X_OK))
    except OSError as error:
        raise _unreadable(file, error) from error


def _walk(folder: Path, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield (path, file) of everything that is not ignored. Ignored folders are not listed, as they may be huge."""
    from pathspec import GitIgnoreSpec

    ignore_file = folder / IGNORE_FILE
    try:
        lines = ignore_file.read_text(encoding="utf-8").splitlines() if ignore_file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(ignore_file, error) from error
    try:
        ignored = GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *lines])
    except ValueError as error:
        raise InvalidProgram(IGNORE_FILE, str(error), expected="lines in .gitignore's syntax") from error
    for parent, folders, names in os.walk(folder):
        below = Path(parent).relative_to(folder)
        kept = [name for name in sorted(folders) if not ignored.match_file(f"{(below / name).as_posix()}/")]
        links = [name for name in kept if Path(parent, name).is_symlink()]
        notes += [f"{(below / name).as_posix()}/ is a link to a folder, which is not followed" for name in links]
        folders[:] = [name for name in kept if name not in links]
        for name in sorted(names):
            path, file = (below / name).as_posix(), Path(parent, name)
            if ignored.match_file(path) or path == IGNORE_FILE:
                continue
            # Reading a socket or pipe would block; a broken link has no content.
            if file.is_file():
                yield path, file
            else:
                notes.append(f"{path} is no file, and is not shipped")


def _unreadable(file: Path, error: Exception) -> InvalidProgram:
    why = getattr(error, "strerror", None) or "not a text file"
    return InvalidProgram(str(file), f"cannot be read: {why}", next_step=f"Fix it, or name it in {IGNORE_FILE}.")
