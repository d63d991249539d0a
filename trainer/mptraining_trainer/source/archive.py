"""Unpacks a source archive, .tgz or .zip, so that nothing of it lands outside the folder.

Refused: absolute paths and `..`, links that lead out or through other links, devices, and archives beyond
`MOST_BYTES` or `MOST_ENTRIES`. Where Python has tarfile's `data` filter, it is asked too.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_records.storage import local as files

# Far above any program, far below a node's disk. What is larger is data, and belongs into a bucket or a volume.
MOST_ARCHIVE_BYTES = 512 << 20
MOST_BYTES = 2 << 30
MOST_ENTRIES = 50_000

_GZIP = b"\x1f\x8b"
_ZIP = b"PK"
_NEXT = "Pack the folder with the program's code alone, by relative paths."
# What another attempt may find mended.
_THE_DISK_S = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)


@dataclass
class Unpacked:
    """What has been taken out of an archive so far; paths are relative to its root."""

    where: str
    entries: int = 0
    bytes: int = 0
    files: set[PurePosixPath] = field(default_factory=set)
    links: set[PurePosixPath] = field(default_factory=set)

    def admit(self, name: str, size: int) -> PurePosixPath:
        """Counts one entry. Raises InvalidData for one that leads out or is too much."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise self.refused(name, "leads out of the source folder")
        if path in self.links or any(parent in self.links for parent in path.parents):
            raise self.refused(name, "lies behind a link")
        self.entries += 1
        self.bytes += size
        if self.entries > MOST_ENTRIES:
            raise self.refused(name, f"is one entry more than {MOST_ENTRIES:,}")
        if self.bytes > MOST_BYTES:
            raise self.refused(name, f"goes beyond {MOST_BYTES >> 30} GiB unpacked")
        return path

    def refused(self, name: str, why: str) -> InvalidData:
        quoted = repr(name if len(name) <= 200 else name[:200] + "…")
        return InvalidData(self.where, f"{quoted} in the archive {why}", next_step=_NEXT)


def unpack(archive: Path, folder: Path, where: str) -> Unpacked:
    """Unpacks into `folder`, which is made; what kind of archive it is says its content.

    `where` is how messages call the archive. Raises InvalidSpec for a file that is no archive, InvalidData for one
    that is damaged or not safe, StorageUnavailable when the disk is full.
    """
    files.make_folder(folder)
    unpacked = Unpacked(where)
    with files.explained(archive), archive.open("rb") as file:
        magic = file.read(2)
    with files.explained(folder), _explained(where):
        if magic == _GZIP:
            _untar(archive, folder, unpacked)
        elif magic == _ZIP:
            _unzip(archive, folder, unpacked)
        else:
            raise InvalidSpec("spec.source.archive.uri", f"{where} is no archive", expected=".tgz, .tar.gz or .zip")
    return unpacked


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise InvalidData(where, f"damaged archive: {error}", next_step="Pack it anew.") from error
    except OSError as error:
        if error.errno in _THE_DISK_S:
            raise
        # Two entries of one name, a name too long: the archive's fault, which no other attempt mends.
        what = error.strerror or str(error)
        raise InvalidData(
            where, f"the archive cannot be unpacked: {what}: {error.filename}", next_step=_NEXT
        ) from error


def _untar(archive: Path, folder: Path, unpacked: Unpacked) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _untar_one(tar, member, folder, unpacked)
    except gzip.BadGzipFile as error:
        # An OSError too, but nothing that the file system has done.
        raise tarfile.ReadError(str(error)) from error


def _untar_one(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, unpacked: Unpacked) -> None:
    path = unpacked.admit(member.name, member.size)
    if hasattr(tarfile, "data_filter"):
        _ask_tarfile(member, folder, unpacked)
    # Links are made here: where tarfile cannot make one, it looks for another entry to put in its place.
    if member.issym():
        if not _stays_inside(path, member.linkname):
            raise unpacked.refused(member.name, f"is a link to {member.linkname!r}, which leads out")
        unpacked.links.add(path)
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, path).symlink_to(member.linkname)
    elif member.islnk():
        # A hard link to a link would be that link in another place, from where it may lead out.
        target = PurePosixPath(member.linkname)
        if target.is_absolute() or ".." in target.parts:
            raise unpacked.refused(member.name, f"is a link to {member.linkname!r}, which leads out")
        if target not in unpacked.files or target == path:
            raise unpacked.refused(member.name, f"is a hard link to {member.linkname!r}, no file before it")
        unpacked.bytes += Path(folder, target).stat().st_size
        unpacked.files.add(path)
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder, target), Path(folder, path))
    elif member.isdir():
        Path(folder, path).mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        _write(tar, member, Path(folder, path))
        unpacked.files.add(path)
    else:
        raise unpacked.refused(member.name, "is a device or a pipe")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """The file's content; of its mode what the owner may do, and what others may read."""
    place.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None
    # A link of that name would be written through.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with content, os.fdopen(os.open(place, flags, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(member.mode & 0o755 | 0o600)


def _ask_tarfile(member: tarfile.TarInfo, folder: Path, unpacked: Unpacked) -> None:
    """Python's own opinion of the entry; Debian 12's 3.11.2 has none yet."""
    try:
        tarfile.data_filter(member, str(folder))
    except (tarfile.LinkOutsideDestinationError, tarfile.AbsoluteLinkError) as error:
        raise unpacked.refused(member.name, f"is a link to {member.linkname!r}, which leads out") from error
    except tarfile.SpecialFileError as error:
        raise unpacked.refused(member.name, "is a device or a pipe") from error
    except tarfile.FilterError as error:
        raise unpacked.refused(member.name, f"was refused by tarfile: {error}") from error


def _stays_inside(link: PurePosixPath, target: str) -> bool:
    """Whether a relative link's target is inside, whatever other links there are.

    Its folder is a real one (`admit`), so `..` is known to lead to the parent only before any other name.
    """
    path = PurePosixPath(target)
    up = 0
    for part in path.parts:
        if part != "..":
            break
        up += 1
    return not path.is_absolute() and ".." not in path.parts[up:] and up < len(link.parts)


def _unzip(archive: Path, folder: Path, unpacked: Unpacked) -> None:
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            path = unpacked.admit(entry.filename, entry.file_size)
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise unpacked.refused(entry.filename, "is a link, which a .zip may not hold")
            try:
                packed.extract(entry, folder)
            except (RuntimeError, NotImplementedError) as error:
                raise unpacked.refused(entry.filename, f"cannot be read: {error}") from error
            if not entry.is_dir():
                unpacked.files.add(path)
