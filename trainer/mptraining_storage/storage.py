"""Files and objects by URI: `gs://bucket/key`, a local path, or `file:///path`.

Every function raises Problems only: InvalidData for errors that the user can fix (no such file, no permission),
StorageUnavailable for errors that may be temporary (no response), StorageFull for a full disk.
"""

from __future__ import annotations

import difflib
import fnmatch
import mmap
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from mptraining_api.problems import InvalidData
from mptraining_storage import gcs, local, preconditions
from mptraining_storage.preconditions import ANY, StoredObject

_WILDCARDS = frozenset("*?[")
_THREADS = 16
# The names of a folder among which a message looks for the nearest ones: one response of a bucket.
_NEAREST_OF = 1000


def is_remote(uri: str) -> bool:
    """Return whether `uri` is in a bucket; raises InvalidData for a scheme other than gs:// and file://."""
    if uri.startswith(gcs.SCHEME):
        return True
    scheme, separator, _ = uri.partition("://")
    if separator and scheme != "file":
        raise InvalidData(uri, f"unknown kind of storage {scheme!r}", expected="gs://, file:// or a path")
    return False


def local_path(uri: str) -> Path:
    """Return the path of a local URI."""
    if not uri.startswith("file://"):
        return Path(uri)
    # `?` and `#` are wildcards and names here, not parts of a URL.
    return Path("/" + unquote(uri.removeprefix("file://").partition("/")[2]))


def local_folder(uri: str) -> Path:
    """Return the path of a local folder, created if it does not exist."""
    local.make_folder(local_path(uri))
    return local_path(uri)


def join(base: str, *parts: str) -> str:
    """Return `base/part/part`, without doubled slashes."""
    stripped = [part.strip("/") for part in parts]
    return "/".join([base.rstrip("/"), *stripped] if base else stripped)


def read(uri: str) -> bytes:
    """Read the whole content."""
    return gcs.get(uri) if is_remote(uri) else local.read(local_path(uri))


def read_range(uri: str, start: int, length: int, *, version: str | None = None) -> bytes:
    """Read at most `length` bytes from byte `start`; fewer at the end of the object.

    With `version`, raises InvalidData if the object has another one.
    """
    if is_remote(uri):
        return gcs.get_range(uri, start, length, version)
    content, current = local.read_range(local_path(uri), start, length)
    if version not in (None, current):
        raise preconditions.replaced_error(uri)
    return content


def read_ahead(uri: str, start: int, length: int) -> None:
    """Let the kernel read these bytes of a local file in the background; `read_range` reports errors."""
    local.read_ahead(local_path(uri), start, length)


def memory_map(stored: StoredObject) -> mmap.mmap:
    """Map a local file, which must not be empty, into memory; raises InvalidData if it was replaced since."""
    with local.open_file(local_path(stored.uri)) as (file, current):
        if current.version != stored.version:
            raise preconditions.replaced_error(stored.uri)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def write(uri: str, data: bytes, *, replacing: str | None = ANY) -> StoredObject:
    """Write in one step: a reader sees either the old content or the new one.

    `replacing` is the precondition: `preconditions.ANY` replaces any version or none; with None the object must not
    exist; else it must have this version. Raises Conflict, and changes nothing, if the precondition is not met. Local
    files are compared and renamed in two steps, between which another process could write.
    """
    return gcs.put(uri, data, replacing) if is_remote(uri) else local.write(local_path(uri), data, replacing)


def upload(source: Path | str, uri: str, *, replacing: str | None = ANY) -> StoredObject:
    """Copy a local file to `uri` in one step, as `write`, without loading it into memory."""
    if not is_remote(uri):
        return local.copy(Path(source), local_path(uri), replacing)
    with local.translate_errors(Path(source)):
        Path(source).stat()
    return gcs.put(uri, Path(source), replacing)


def move(source: Path, uri: str, *, replacing: str | None = ANY) -> StoredObject:
    """Upload a local file and delete it; to a local `uri`, which must be on the same disk, rename it."""
    if not is_remote(uri):
        return local.move(source, local_path(uri), replacing)
    stored = upload(source, uri, replacing=replacing)
    local.delete(source)
    return stored


def copy(source: StoredObject, uri: str) -> StoredObject:
    """Copy an object of a bucket within Google Cloud Storage."""
    return gcs.copy(source.uri, source.version, uri)


def download(uri: str, destination: Path | str) -> None:
    """Copy the object to a local file in one step, without loading it into memory."""
    if not is_remote(uri):
        local.copy(local_path(uri), Path(destination))
        return
    with local.atomic_write(Path(destination)) as unfinished:
        gcs.download(uri, unfinished)


@contextmanager
def as_local_file(uri: str) -> Iterator[Path]:
    """Yield the object as a local file: the file itself, or a temporary copy of a remote object."""
    if not is_remote(uri):
        stat(uri)
        yield local_path(uri)
        return
    with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
        path = Path(scratch, uri.rpartition("/")[2])
        download(uri, path)
        yield path


def exists(uri: str) -> bool:
    """Return whether the file or object exists (False for a folder)."""
    return find(uri) is not None


def stat(uri: str) -> StoredObject:
    """Return size and version; raises InvalidData if the object does not exist."""
    stored = find(uri)
    if stored is None:
        raise InvalidData(uri, "no such file or object")
    return stored


def find(uri: str) -> StoredObject | None:
    """Return size and version, None if the object does not exist; raises InvalidData if there is no bucket."""
    return gcs.head(uri) if is_remote(uri) else local.head(local_path(uri))


def list_objects(folder: str) -> list[StoredObject]:
    """List every object below a folder, at any depth, sorted by URI; empty if the folder does not exist."""
    objects = gcs.walk(folder) if is_remote(folder) else local.walk(local_path(folder))
    return sorted(objects, key=lambda stored: stored.uri)


def delete(uri: str, *, version: str | None = None) -> None:
    """Delete one object; ignore a missing one.

    With `version`, a remote object is deleted only if it has that one; raises Conflict if it has another.
    """
    if is_remote(uri):
        gcs.delete(uri, version)
    else:
        local.delete(local_path(uri))


def delete_prefix(folder: str) -> None:
    """Delete a folder with everything below it; ignore a missing one."""
    if not is_remote(folder):
        local.delete_folder(local_path(folder))
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="delete") as pool:
        list(pool.map(gcs.delete, [stored.uri for stored in list_objects(folder)]))


def glob(pattern: str) -> list[StoredObject]:
    """List the objects that match, sorted by URI; any path element may contain `*`, `?` and `[…]`.

    An exact name is not listed, so that it needs no permission to list. Raises InvalidData, with the nearest existing
    names, if nothing matches.
    """
    _refuse_other_wildcards(pattern)
    if not _WILDCARDS & set(pattern) and (exact := find(pattern)):
        return [exact]
    folder, elements = _literal_folder(pattern)
    folders, missed = [folder], (folder, elements[0])
    for element in elements[:-1]:
        missed = (folders[0], element)
        folders = [
            join(parent, name)
            for parent in folders
            for name in _match(_list_folder(parent, _literal_start(element))[0], element)
        ]
        if not folders:
            break
    else:
        missed = (folders[0], elements[-1])
        matched = []
        for parent in folders:
            objects = {stored.name: stored for stored in _list_folder(parent, _literal_start(elements[-1]))[1]}
            matched += [objects[name] for name in _match(objects, elements[-1])]
        if matched:
            return sorted(matched, key=lambda stored: stored.uri)
    raise InvalidData(pattern, "nothing matches", next_step=_unsupported(pattern) or _nearest_names(*missed))


def _refuse_other_wildcards(pattern: str) -> None:
    if "**" in pattern:
        step = "Name each depth in a pattern of its own, such as data/*.tfrecord and data/*/*.tfrecord"
        raise InvalidData(pattern, "** is not supported: * matches within one folder", next_step=step)
    if pattern.endswith("/") and pattern.removeprefix(gcs.SCHEME).count("/") > 1:
        raise InvalidData(pattern, "this names a folder", next_step=f"Name its files, such as {pattern}*.tfrecord")
    if is_remote(pattern) and "//" in pattern.removeprefix(gcs.SCHEME) and _WILDCARDS & set(pattern):
        step = "Remove the second slash, or name each object without wildcards"
        raise InvalidData(pattern, "// and wildcards in one pattern are not supported", next_step=step)


def _unsupported(pattern: str) -> str:
    """Return the next step for a pattern of other tools that is a literal name here; empty for any other pattern."""
    if re.search(r"\{[^{}]*,[^{}]*\}", pattern):
        return "Braces are not expanded: name each of the patterns"
    sharded = re.search(r"@(\d+|\*)$", pattern)
    if sharded:
        count = "?????" if sharded[1] == "*" else f"{int(sharded[1]):05}"
        return f"@{sharded[1]} is not expanded: write {pattern[: sharded.start()]}-?????-of-{count}"
    return ""


def _literal_start(element: str) -> str:
    return re.split(r"[*?\[]", element, maxsplit=1)[0]


def glob_or_empty(pattern: str) -> list[StoredObject]:
    """List the objects that match, as `glob`; empty if nothing matches or the folder does not exist."""
    try:
        return glob(pattern)
    except InvalidData:
        return []


def _literal_folder(pattern: str) -> tuple[str, list[str]]:
    """Split a pattern into its longest folder without a wildcard and the elements after it (at least one)."""
    if is_remote(pattern):
        bucket, key = gcs.split(pattern)
        if _WILDCARDS & set(bucket) or not key:
            raise InvalidData(pattern, "no objects named", expected="gs://bucket/path, wildcards in the path")
        base, path = gcs.SCHEME + bucket, key
    else:
        path = str(local_path(pattern))
        base, path = ("/", path.lstrip("/")) if path.startswith("/") else (".", path)
    elements = path.split("/")
    literal = 0
    while literal < len(elements) - 1 and not _WILDCARDS & set(elements[literal]):
        literal += 1
    return (join(base, *elements[:literal]) if literal else base), elements[literal:]


def _match(names: Iterable[str], element: str) -> list[str]:
    # As in a shell, a wildcard matches no hidden names, such as those of indexes and unfinished shards.
    hidden = element.startswith(".")
    matching = [name for name in names if fnmatch.fnmatchcase(name, element) and (hidden or not name.startswith("."))]
    return [name for name in names if name == element] or matching


def _list_folder(folder: str, start: str = "", most: int | None = None) -> tuple[list[str], list[StoredObject]]:
    """List the names of the folders, and the objects, directly in `folder`; of a bucket those that begin with `start`.

    With `most`, a bucket is asked for so many names only.
    """
    return gcs.list_folder(folder, start, most) if is_remote(folder) else local.list_folder(Path(folder))


def _nearest_names(folder: str, element: str) -> str:
    names, objects = _list_folder(folder, most=_NEAREST_OF)
    present = sorted(names) + sorted(stored.name for stored in objects)
    if element in names:
        return (
            f"{element} is a folder: name its files, such as {join(folder, element, '*.tfrecord').removeprefix('./')}"
        )
    if not present:
        return f"{folder} is empty or does not exist"
    close = difflib.get_close_matches(element, present, n=3, cutoff=0.3) or present[:3]
    return f"{folder} has " + ", ".join(map(repr, close)) + (", …" if len(present) > len(close) else "")
