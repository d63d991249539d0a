"""Extraction of a source archive (.tgz or .zip) that writes nothing outside the target folder.

Rejected entries: absolute paths and `..`, links that point outside or pass through other links, devices, and archives
beyond `MOST_BYTES` or `MOST_ENTRIES`. The checks include those of tarfile's `data` filter, which the Python 3.11.2 of
Debian 12 has not.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_storage import local

# Larger than any program, smaller than a node's disk. Larger content is data and belongs in a bucket or a volume.
MOST_ARCHIVE_BYTES = 512 << 20
MOST_BYTES = 2 << 30
MOST_ENTRIES = 50_000

_GZIP = b"\x1f\x8b"
_ZIP = b"PK"
_NEXT_STEP = "Pack the folder with the program's code alone, by relative paths."
# Errors of the disk, after which another attempt may succeed.
_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
# The last ones are what zipfile and tarfile raise for names, numbers and methods of compression that they cannot read.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError),
    *(NotImplementedError, ValueError, OverflowError, struct.error),
)


@dataclass
class Extraction:
    """The entries extracted so far; paths are relative to the archive's root."""

    where: str
    entries: int = 0
    size: int = 0
    files: set[PurePosixPath] = field(default_factory=set)
    links: set[PurePosixPath] = field(default_factory=set)

    def check_entry(self, name: str, size: int) -> PurePosixPath:
        """Count one entry. Raise InvalidData if it points outside the folder or exceeds a limit."""
        path = PurePosixPath(name)
        if not name:
            raise self.entry_error(name, "has no name")
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise self.entry_error(name, "leads out of the source folder")
        if path in self.links or any(parent in self.links for parent in path.parents):
            raise self.entry_error(name, "is behind a link")
        self.entries += 1
        self.size += size
        if self.entries > MOST_ENTRIES:
            raise self.entry_error(name, f"is one entry more than {MOST_ENTRIES:,}")
        if self.size > MOST_BYTES:
            raise self.entry_error(name, f"goes beyond {MOST_BYTES >> 30} GiB unpacked")
        return path

    def entry_error(self, name: str, why: str) -> InvalidData:
        quoted = repr(name if len(name) <= 200 else name[:200] + "…")
        return InvalidData(self.where, f"{quoted} in the archive {why}", next_step=_NEXT_STEP)


def unpack(archive: Path, folder: Path, where: str) -> Extraction:
    """Extract `archive` into `folder`, which is created; the content decides the archive's type.

    `where` names the archive in messages. Raises InvalidSpec if the file is not an archive, InvalidData if it is
    damaged or unsafe, StorageFull if the disk is full.
    """
    local.make_folder(folder)
    extraction = Extraction(where)
    with local.translate_errors(archive), archive.open("rb") as file:
        magic = file.read(2)
    with local.translate_errors(folder), _archive_errors(where):
        if magic == _GZIP:
            _untar(archive, folder, extraction)
        elif magic == _ZIP:
            _unzip(archive, folder, extraction)
        else:
            raise InvalidSpec("spec.source.archive.uri", f"{where} is no archive", expected=".tgz, .tar.gz or .zip")
    return extraction


@contextmanager
def _archive_errors(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise InvalidData(where, f"damaged archive: {error}", next_step="Create the archive again.") from error
    except OSError as error:
        if error.errno in _DISK_ERRNOS:
            raise
        # Two entries of one name or a name that is too long: the archive is at fault, and another attempt cannot
        # succeed.
        cause = f"the archive cannot be unpacked: {error.strerror or error}: {error.filename}"
        raise InvalidData(where, cause, next_step=_NEXT_STEP) from error


def _untar(archive: Path, folder: Path, extraction: Extraction) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _untar_one(tar, member, folder, extraction)
    except gzip.BadGzipFile as error:
        # BadGzipFile is an OSError too, but the file system did not fail.
        raise tarfile.ReadError(str(error)) from error


def _untar_one(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, extraction: Extraction) -> None:
    path = extraction.check_entry(member.name, member.size)
    # Links are created here, because tarfile extracts another entry in place of a link that it cannot create.
    if member.issym():
        if not _stays_inside(path, member.linkname):
            raise extraction.entry_error(member.name, f"is a link to {member.linkname!r}, which leads out")
        extraction.links.add(path)
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, path).symlink_to(member.linkname)
    elif member.islnk():
        # A hard link to a link would be that link in another folder, from where it may point outside.
        target = PurePosixPath(member.linkname)
        if target.is_absolute() or ".." in target.parts:
            raise extraction.entry_error(member.name, f"is a link to {member.linkname!r}, which leads out")
        if target not in extraction.files or target == path:
            raise extraction.entry_error(member.name, f"is a hard link to {member.linkname!r}, no file before it")
        extraction.size += Path(folder, target).stat().st_size
        extraction.files.add(path)
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder, target), Path(folder, path))
    elif member.isdir():
        Path(folder, path).mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        _write(tar, member, Path(folder, path))
        extraction.files.add(path)
    else:
        raise extraction.entry_error(member.name, "is a device or a pipe")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write the file's content; keep of its mode the owner's permissions, and read and execute for others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None
    # Without O_NOFOLLOW a link of that name would be written through.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with content, os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(member.mode & 0o755 | 0o600)


def _stays_inside(link: PurePosixPath, target: str) -> bool:
    """Return whether a relative link's target is inside the folder, whatever other links exist.

    The link's folder is a real one (`check_entry`), so `..` leads to the parent only before any other name.
    """
    path = PurePosixPath(target)
    up = 0
    for part in path.parts:
        if part != "..":
            break
        up += 1
    return not path.is_absolute() and ".." not in path.parts[up:] and up < len(link.parts)


def _unzip(archive: Path, folder: Path, extraction: Extraction) -> None:
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            path = extraction.check_entry(entry.filename, entry.file_size)
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise extraction.entry_error(entry.filename, "is a link, which a .zip may not hold")
            try:
                packed.extract(entry, folder)
            except (RuntimeError, NotImplementedError) as error:
                raise extraction.entry_error(entry.filename, f"cannot be read: {error}") from error
            if not entry.is_dir():
                extraction.files.add(path)
