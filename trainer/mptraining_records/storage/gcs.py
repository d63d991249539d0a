"""Google Cloud Storage backend of `storage`; only this module and `ranges` send requests to a bucket.

google-cloud-storage lists, stats, reads small objects, writes, copies and deletes through the JSON API; obstore reads
ranges. Every error becomes a Problem (`errors`). A version is an object's generation.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import google_crc32c

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.storage import errors, gcs_clients, preconditions
from mptraining_records.storage.retry import retry_policy

if TYPE_CHECKING:
    from google.cloud.storage import Blob
    from obstore.store import GCSStore

SCHEME = "gs://"
_FIELDS = "items(name,size,generation,crc32c),prefixes,nextPageToken"
# A resumable upload resumes at a multiple of this size and holds this much in memory.
_CHUNK = 8 << 20


class Found(NamedTuple):
    """One object of a bucket: its key, its size in bytes, its generation, and the CRC32C of its content."""

    key: str
    size: int
    version: str
    crc32c: int | None


def split(uri: str) -> tuple[str, str]:
    """Split `gs://bucket/key` into bucket and key; the key of a bare bucket is empty.

    Raises InvalidData if the bucket's name is missing.
    """
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise InvalidData(uri, "no bucket", expected="gs://bucket/path")
    return bucket, key


def get(uri: str) -> bytes:
    """Read a whole small object and verify its checksum."""
    with translate_errors(uri):
        content: bytes = _blob(uri).download_as_bytes(checksum="crc32c", **_request_options(uri))
        return content


def get_range(uri: str, start: int, length: int, version: str | None) -> bytes:
    """Read at most `length` bytes from byte `start`; raises InvalidData if the object has another version."""
    import obstore

    store, key = _read_store(uri)
    with translate_errors(uri):
        result = obstore.get(store, key, options={"range": (start, start + length)})
        gcs_clients.endpoint().has_responded = True
        check_version(uri, result.meta, version)
        return result.bytes().to_bytes()


def check_version(uri: str, meta: Any, version: str | None) -> None:
    """Raise InvalidData if `meta`, of a response of obstore, has another version of the object."""
    if version is not None and str(meta["version"]) != version:
        raise preconditions.replaced_error(uri)


def download(uri: str, destination: Path) -> None:
    """Stream the object into a local file."""
    import obstore

    store, key = _read_store(uri)
    with translate_errors(uri), destination.open("wb") as file:
        result = obstore.get(store, key)
        gcs_clients.endpoint().has_responded = True
        for chunk in result.stream(min_chunk_size=_CHUNK):
            file.write(chunk)


def put(uri: str, source: bytes | Path, replacing: str | None) -> Found:
    """Write the object in one step, a large one by a resumable upload; `replacing` as in `storage.write`.

    The bucket rejects content whose CRC32C is not the source's. Raises Conflict.
    """
    from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed

    with _content(source) as (file, size, crc32c), translate_errors(uri, writing=True):
        for last in (False, True):
            blob = _blob(uri)
            blob.crc32c = base64.b64encode(crc32c.to_bytes(4, "big")).decode()
            file.seek(0)
            try:
                blob.upload_from_file(
                    file, size=size, checksum=None, **_precondition(replacing), **_request_options(uri, writing=True)
                )
            except PreconditionFailed as error:
                # An earlier request of this call may have written the object, and its response was lost.
                existing = head(uri)
                if existing is None or (existing.size, existing.crc32c) != (size, crc32c):
                    raise preconditions.conflict_error(uri, replacing) from error
                return existing
            except GoogleAPICallError as error:
                # 410 means that the server discarded the upload session, which is restarted once.
                if last or error.code != 410:
                    raise
                continue
            stored = _found(blob)
            if stored.size == size and stored.crc32c in (crc32c, None):
                return stored
            gcs_clients.endpoint().report_retry(uri, "what arrived differs from what was sent")
            replacing = stored.version
    raise StorageUnavailable(uri, "what arrived differs from what was sent (CRC32C)")


def copy(source: str, version: str, uri: str) -> Found:
    """Copy this version of an object within Google Cloud Storage, replacing the object at `uri`."""
    with translate_errors(uri, writing=True):
        original, blob = _blob(source), _blob(uri)
        token = None
        while True:
            # Between storage classes or locations the server copies in several calls, continued by a token.
            token, _, _ = blob.rewrite(
                original, token=token, if_source_generation_match=int(version), **_request_options(uri, writing=True)
            )
            if token is None:
                return _found(blob)


def head(uri: str) -> Found | None:
    """Return the object's size and version, None if it does not exist; raises InvalidData if there is no bucket."""
    from google.api_core.exceptions import NotFound

    with translate_errors(uri):
        blob = _blob(uri)
        try:
            blob.reload(**_request_options(uri))
        except NotFound as error:
            if not errors.names_the_object(str(error)) and not _has_bucket(uri):
                raise
            return None
        return _found(blob)


def walk(uri: str) -> list[Found]:
    """List every object below a folder, at any depth; empty if the folder does not exist."""
    with translate_errors(uri):
        return [_found(blob) for blob in _list(uri) if not _is_marker(blob)]


def list_folder(uri: str) -> tuple[list[str], list[Found]]:
    """List the folders (keys without the last slash) and the objects directly in one folder."""
    with translate_errors(uri):
        listing = _list(uri, delimiter="/")
        objects = [_found(blob) for blob in listing if not _is_marker(blob)]
        return sorted(prefix.rstrip("/") for prefix in listing.prefixes), objects


def delete(uri: str, version: str | None = None) -> None:
    """Delete the object, with `version` only that one; ignore a missing object. Raises Conflict."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    with translate_errors(uri, writing=True):
        try:
            _blob(uri).delete(**_precondition(version or preconditions.ANY), **_request_options(uri))
        except NotFound:
            return
        except PreconditionFailed as error:
            raise preconditions.conflict_error(uri, version) from error


def _list(uri: str, **options: Any) -> Any:
    bucket, key = split(uri)
    prefix = f"{key.rstrip('/')}/" if key else None
    client = gcs_clients.endpoint().client
    return client.list_blobs(bucket, prefix=prefix, fields=_FIELDS, **options, **_request_options(uri))


def _has_bucket(uri: str) -> bool:
    from google.api_core.exceptions import GoogleAPICallError, NotFound

    client = gcs_clients.endpoint().client
    try:
        # A GET of the bucket requires storage.buckets.get, which accounts that may read its objects often lack.
        next(iter(client.list_blobs(split(uri)[0], max_results=1, fields=_FIELDS, **_request_options(uri))), None)
    except NotFound:
        return False
    except GoogleAPICallError:
        return True
    return True


def _is_marker(blob: Blob) -> bool:
    # The Google Cloud console represents a folder by an empty object whose name ends in a slash.
    return str(blob.name).endswith("/")


def _found(blob: Blob) -> Found:
    crc = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
    return Found(str(blob.name), int(blob.size or 0), str(blob.generation), crc)


def _blob(uri: str) -> Blob:
    bucket, key = split(uri)
    return gcs_clients.endpoint().client.bucket(bucket).blob(key, chunk_size=_CHUNK)


def _request_options(uri: str, *, writing: bool = False) -> dict[str, Any]:
    timeout = gcs_clients.WRITING if writing else gcs_clients.READING
    endpoint = gcs_clients.endpoint()
    retry = retry_policy(endpoint.settings.retry_seconds, functools.partial(endpoint.report_retry, uri))
    return {"timeout": timeout, "retry": retry}


def _precondition(replacing: str | None) -> dict[str, int]:
    return {} if replacing == preconditions.ANY else {"if_generation_match": int(replacing or 0)}


@contextmanager
def _content(source: bytes | Path) -> Iterator[tuple[BinaryIO, int, int]]:
    """Yield the source as a file, its size in bytes and its CRC32C."""
    if isinstance(source, bytes):
        yield io.BytesIO(source), len(source), google_crc32c.value(source)
        return
    with source.open("rb") as file:
        crc32c = 0
        while piece := file.read(1 << 20):
            crc32c = google_crc32c.extend(crc32c, piece)
        yield file, file.tell(), crc32c


def _read_store(uri: str) -> tuple[GCSStore, str]:
    bucket, key = split(uri)
    return gcs_clients.endpoint().store(bucket), key


def translate_errors(uri: str, *, writing: bool = False) -> Any:
    """Return a context manager that turns every error of a request for `uri` into a Problem."""
    has_bucket: Callable[[], bool] = functools.partial(_has_bucket, uri)
    return errors.translate_errors(uri, split(uri)[0], writing=writing, has_bucket=has_bucket)
