"""Google Cloud Storage through obstore: the remote half of `storage`, and the only module that asks a bucket.

Every error of obstore becomes a Problem here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records import connections

if TYPE_CHECKING:
    from obstore.store import GCSStore

SCHEME = "gs://"


class Found(NamedTuple):
    """One object of a bucket: its key, its size in bytes, and its ETag, which changes with its content."""

    key: str
    size: int
    version: str


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of `gs://bucket/key`; the key of a bare bucket is empty.

    Raises InvalidData when there is no bucket.
    """
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise InvalidData(uri, "no bucket", expected="gs://bucket/path")
    return bucket, key


def get(uri: str) -> bytes:
    """The whole object."""
    import obstore

    store, key = _reading(uri)
    with explained(uri):
        return obstore.get(store, key).bytes().to_bytes()


def get_range(uri: str, start: int, length: int, version: str | None) -> bytes:
    """At most `length` bytes from byte `start`; raises InvalidData when the object is not of this version."""
    import obstore

    store, key = _reading(uri)
    with explained(uri):
        result = obstore.get(store, key, options={"range": (start, start + length)})
        check_version(uri, result.meta, version)
        return result.bytes().to_bytes()


def put(uri: str, source: bytes | Path) -> None:
    """Writes or replaces the object in one step; a file is streamed, in parallel parts when it is long."""
    import obstore

    settings = connections.settings()
    if settings.emulator:
        _put_to_emulator(connections.base_url(settings.emulator), uri, source)
        return
    bucket, key = split(uri)
    store = connections.store(bucket, settings, writing=True)
    with explained(uri):
        obstore.put(store, key, source, chunk_size=16 << 20)


def download(uri: str, destination: Path) -> None:
    """Streams the object into a local file."""
    import obstore

    store, key = _reading(uri)
    with explained(uri), destination.open("wb") as file:
        for chunk in obstore.get(store, key).stream(min_chunk_size=8 << 20):
            file.write(chunk)


def head(uri: str) -> Found | None:
    """The object's size and version, None when it does not exist."""
    import obstore

    store, key = _reading(uri)
    with explained(uri):
        try:
            return _found(obstore.head(store, key))
        except FileNotFoundError:
            return None


def walk(uri: str) -> list[Found]:
    """Every object below a folder, at any depth; none when the folder does not exist."""
    import obstore

    store, key = _reading(uri)
    with explained(uri):
        return [_found(meta) for chunk in obstore.list(store, key or None, chunk_size=1000) for meta in chunk]


def level(uri: str) -> tuple[list[str], list[Found]]:
    """The folders (keys without the last slash) and the objects directly in one folder."""
    import obstore

    store, key = _reading(uri)
    with explained(uri):
        found = obstore.list_with_delimiter(store, key or None)
        return list(found["common_prefixes"]), [_found(meta) for meta in found["objects"]]


def delete(uri: str) -> None:
    """Deletes the object; nothing happens when it does not exist."""
    import obstore

    store, key = _reading(uri)
    with explained(uri):
        try:
            obstore.delete(store, key)
        except FileNotFoundError:
            return


def replaced(uri: str) -> InvalidData:
    """What to say when an object is not the one that was indexed."""
    return InvalidData(
        uri,
        "the object was replaced after it was indexed",
        next_step="Start the job again, and write changed data under a new name",
    )


def check_version(uri: str, meta: Any, version: str | None) -> None:
    """Raises InvalidData when an answer is not of this version of the object."""
    if version is not None and _version(meta) != version:
        raise replaced(uri)


def _found(meta: Any) -> Found:
    return Found(meta["path"], meta["size"], _version(meta))


def _version(meta: Any) -> str:
    # Listings carry no generation, so the ETag it is; some servers quote it in one answer and not in another.
    return str(meta["e_tag"] or meta["version"]).strip('"')


def _reading(uri: str) -> tuple[GCSStore, str]:
    bucket, key = split(uri)
    return connections.store(bucket, connections.settings(), writing=False), key


def _put_to_emulator(base_url: str, uri: str, source: bytes | Path) -> None:
    # fake-gcs-server takes uploads by the JSON API only, and obstore writes by the XML API.
    import requests

    bucket, key = split(uri)
    with requests.Session() as session:
        session.trust_env = False
        url = f"{base_url}/upload/storage/v1/b/{bucket}/o"
        parameters = {"uploadType": "media", "name": key}
        try:
            if isinstance(source, bytes):
                answer = session.post(url, params=parameters, data=source, timeout=20)
            else:
                with source.open("rb") as file:
                    answer = session.post(url, params=parameters, data=file, timeout=20)
        except requests.RequestException as error:
            raise StorageUnavailable(uri, f"the storage emulator does not answer: {error}") from error
    if answer.status_code != 200:
        raise _problem(uri, answer.status_code, answer.text)


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turns what obstore raises into one line about `uri`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except Problem:
        raise
    except FileNotFoundError as error:
        raise _problem(uri, 404, str(error)) from error
    except BaseError as error:
        text = str(error)
        status = re.search(r"status code: (\d{3})", text)
        raise _problem(uri, int(status.group(1)) if status else 0, text) from error


def _problem(uri: str, status: int, text: str) -> Problem:
    bucket = split(uri)[0]
    if re.search(r"NoSuchBucket|no bucket named|bucket does not exist", text):
        return InvalidData(uri, f"there is no bucket {bucket!r}", next_step="Check the name after gs://")
    if re.search(r"RefreshError|token request", text, re.IGNORECASE):
        return InvalidData(uri, "the Google credentials were refused", next_step=connections.LOGIN)
    if status == 404:
        return InvalidData(uri, "no such object", next_step="List what is there with `gcloud storage ls`")
    if status in (401, 403):
        return InvalidData(
            uri,
            f"no permission (HTTP {status})",
            next_step=f"Grant roles/storage.objectUser on gs://{bucket} to the job's service account",
        )
    if status and status < 500 and status not in (408, 429):
        return InvalidData(uri, f"the bucket refused the request (HTTP {status})")
    return StorageUnavailable(uri, f"the bucket answered HTTP {status}" if status else _connection(text))


def _connection(text: str) -> str:
    first = text.partition("\n")[0]
    return f"the bucket cannot be reached ({first.rpartition(' - ')[2] or first})"
