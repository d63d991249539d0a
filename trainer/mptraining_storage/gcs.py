"""Google Cloud Storage backend of `storage`; only this module and `ranges` send requests to a bucket.

google-cloud-storage lists, stats, writes, copies and deletes; `content` reads. Every error becomes a Problem. A version
is an object's generation.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import google_crc32c

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_storage import content, gcs_clients, preconditions, sign_in
from mptraining_storage.content import Compressed, ConnectionFailed, HttpError
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.retry import (
    RetryLater,
    cause_of,
    describe,
    is_temporary,
    is_untrusted,
    retried,
    retry_after_of,
    retry_policy,
    status_of,
    text_of,
)

if TYPE_CHECKING:
    from google.cloud.storage import Blob

T = TypeVar("T")

SCHEME = "gs://"
_FIELDS = "items(name,size,generation,crc32c),prefixes,nextPageToken"
# A resumable upload resumes at a multiple of this size and holds this much in memory.
_CHUNK = 8 << 20
_READER = "roles/storage.objectViewer"
_WRITER = "roles/storage.objectUser"
_NO_BUCKET = re.compile(r"NoSuchBucket|no bucket named|bucket does not exist", re.IGNORECASE)
_NO_OBJECT = re.compile(r"NoSuchKey|No such object|specified key does not exist", re.IGNORECASE)
_NO_PAYER = re.compile(r"requester pays bucket but no user project|UserProjectMissing", re.IGNORECASE)
_MESSAGE = re.compile(r'"message":\s*("(?:[^"\\]|\\.)*")')
# Matches "trainer@project.iam.gserviceaccount.com does not have storage.objects.get access …", a response of Google.
_PRINCIPAL = re.compile(r"(principal://[^\s\"']+|[^\s\"':]+@[^\s\"':]+|Anonymous caller) does not have")


def split(uri: str) -> tuple[str, str]:
    """Split `gs://bucket/key` into bucket and key; the key of a bare bucket is empty.

    Raises InvalidData if the bucket's name is missing.
    """
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise InvalidData(uri, "no bucket", expected="gs://bucket/path")
    if not (bucket[0].isalnum() and bucket[-1].isalnum()):
        # google-cloud-storage raises ValueError for such a name.
        raise InvalidData(uri, f"no bucket can have the name {bucket!r}", expected="a letter or digit at both ends")
    return bucket, key


def get(uri: str) -> bytes:
    """Read a whole small object and verify its checksum."""
    bucket, key = split(uri)

    def receive_whole() -> bytes:
        with translate_errors(uri):
            body, crc32c = content.receive_whole(bucket, key)
        if crc32c not in ("", _base64(google_crc32c.value(body))):
            raise StorageUnavailable(uri, "what arrived differs from what was sent (CRC32C)")
        return body

    return retry(uri, receive_whole)


def get_range(uri: str, start: int, length: int, version: str | None) -> bytes:
    """Read at most `length` bytes from byte `start`; raises InvalidData if the object has another version."""
    into = bytearray(length)
    received = retry(uri, lambda: receive(uri, start, memoryview(into), version))
    return bytes(into[: received.size])


def receive(uri: str, start: int, into: memoryview, version: str | None) -> content.Received:
    """Fill `into` from one request, as `content.receive`; raises InvalidData if the object has another version."""
    bucket, key = split(uri)
    with translate_errors(uri):
        received = content.receive(bucket, key, start, into)
    if version is not None and received.version != version:
        raise preconditions.replaced_error(uri)
    return received


def retry(uri: str, request: Callable[[], T]) -> T:
    """Return the result of the request, which is retried after StorageUnavailable."""
    endpoint = gcs_clients.endpoint()
    return retried(
        request,
        seconds=endpoint.settings.retry_seconds,
        on_retry=lambda problem: endpoint.report_retry(uri, problem.found),
    )


def download(uri: str, destination: Path) -> None:
    """Copy the object into a local file, without loading it into memory; raises InvalidData if it is replaced."""
    stored = head(uri)
    if stored is None:
        raise _no_object_error(uri)
    buffer = memoryview(bytearray(min(_CHUNK, stored.size)))
    with destination.open("wb") as file:
        while (at := file.tell()) < stored.size:
            into = buffer[: stored.size - at]
            received = retry(uri, functools.partial(receive, uri, at, into, stored.version))
            file.write(into[: received.size])


def put(uri: str, source: bytes | Path, replacing: str | None) -> StoredObject:
    """Write the object in one step, a large one by a resumable upload; `replacing` as in `storage.write`.

    The bucket rejects content whose CRC32C is not the source's. Raises Conflict.
    """
    from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed

    with _content(source) as (file, size, crc32c), translate_errors(uri, writing=True):
        for last in (False, True):
            blob = _blob(uri)
            blob.crc32c = _base64(crc32c)
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
            stored = _stored(blob)
            if stored.size == size and stored.crc32c in (crc32c, None):
                return stored
            gcs_clients.endpoint().report_retry(uri, "what arrived differs from what was sent")
            replacing = stored.version
    raise StorageUnavailable(uri, "what arrived differs from what was sent (CRC32C)")


def copy(source: str, version: str, uri: str) -> StoredObject:
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
                return _stored(blob)


def head(uri: str) -> StoredObject | None:
    """Return the object's size and version, None if it does not exist; raises InvalidData if there is no bucket."""
    from google.api_core.exceptions import NotFound

    with translate_errors(uri):
        blob = _blob(uri)
        try:
            blob.reload(**_request_options(uri))
        except NotFound as error:
            if not _NO_OBJECT.search(str(error)) and not _has_bucket(uri):
                raise
            return None
        return _stored(blob)


def walk(uri: str) -> list[StoredObject]:
    """List every object below a folder, at any depth; empty if the folder does not exist."""
    with translate_errors(uri):
        return [_stored(blob) for blob in _list(uri) if not _is_marker(blob)]


def list_folder(uri: str, start: str = "", most: int | None = None) -> tuple[list[str], list[StoredObject]]:
    """List the names of the folders, and the objects, directly in one folder.

    Only names that begin with `start` are listed, at most `most` of them.
    """
    with translate_errors(uri):
        listing = _list(uri, start, delimiter="/", max_results=most)
        objects = [_stored(blob) for blob in listing if not _is_marker(blob)]
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listing.prefixes), objects


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


def _list(uri: str, start: str = "", **options: Any) -> Any:
    bucket, key = split(uri)
    prefix = (f"{key.rstrip('/')}/" if key else "") + start or None
    client = gcs_clients.endpoint().client
    return client.list_blobs(bucket, prefix=prefix, fields=_FIELDS, **options, **_request_options(uri))


def _has_bucket(uri: str) -> bool:
    from google.api_core.exceptions import GoogleAPICallError

    client = gcs_clients.endpoint().client
    try:
        # A GET of the bucket requires storage.buckets.get, which accounts that may read its objects often lack.
        next(iter(client.list_blobs(split(uri)[0], max_results=1, fields=_FIELDS, **_request_options(uri))), None)
    except GoogleAPICallError as error:
        return error.code != 404
    return True


def _is_marker(blob: Blob) -> bool:
    # The Google Cloud console represents a folder by an empty object whose name ends in a slash.
    return str(blob.name).endswith("/")


def _stored(blob: Blob) -> StoredObject:
    crc = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
    return StoredObject(f"{SCHEME}{blob.bucket.name}/{blob.name}", int(blob.size or 0), str(blob.generation), crc)


def _blob(uri: str) -> Blob:
    bucket, key = split(uri)
    return gcs_clients.endpoint().client.bucket(bucket).blob(key, chunk_size=_CHUNK)


def _request_options(uri: str, *, writing: bool = False) -> dict[str, Any]:
    timeout = gcs_clients.WRITING if writing else gcs_clients.READING
    endpoint = gcs_clients.endpoint()
    policy = retry_policy(
        endpoint.settings.retry_seconds,
        functools.partial(endpoint.report_retry, uri),
        may_renew_token=endpoint.may_renew_token,
    )
    return {"timeout": timeout, "retry": policy}


def _precondition(replacing: str | None) -> dict[str, int]:
    return {} if replacing == preconditions.ANY else {"if_generation_match": int(replacing or 0)}


def _base64(crc32c: int) -> str:
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


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


@contextmanager
def translate_errors(uri: str, *, writing: bool = False) -> Iterator[None]:
    """Translate every exception of a request for `uri` into a Problem of one line."""
    import requests
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud.storage.exceptions import InvalidResponse

    try:
        yield
    except Problem:
        raise
    except DefaultCredentialsError as error:
        missing = sign_in.no_credentials(error)
        raise InvalidData(uri, missing.cause, next_step=missing.next_step) from error
    except Compressed as error:
        raise InvalidData(
            uri,
            "the object is stored with a Content-Encoding (gzip), so that the bucket sends no part of it",
            next_step=f"Run `gcloud storage objects update --clear-content-encoding {shlex.quote(uri)}`: a compressed "
            "TFRecord file is then expanded when the job starts",
        ) from error
    except (
        ConnectionFailed,
        HttpError,
        GoogleAPICallError,
        RetryError,
        InvalidResponse,
        requests.RequestException,
        GoogleAuthError,
    ) as error:
        cause: BaseException = error
        if isinstance(error, RetryError | ConnectionFailed) and error.__cause__ is not None:
            cause = error.__cause__
        if is_untrusted(cause):
            raise InvalidData(
                uri,
                f"the certificate of the bucket's server is not trusted ({cause_of(cause)})",
                next_step="Name the authority's certificate in SSL_CERT_FILE and REQUESTS_CA_BUNDLE",
            ) from error
        refused = sign_in.refusal(cause) if isinstance(cause, GoogleAuthError) else None
        if refused is not None:
            raise InvalidData(uri, refused.cause, next_step=refused.next_step) from error
        if isinstance(error, ConnectionFailed):
            raise StorageUnavailable(uri, f"the bucket cannot be reached ({error})") from error
        raise _problem(uri, cause, _WRITER if writing else _READER) from error


def _problem(uri: str, error: BaseException, role: str) -> Problem:
    status, text, bucket = status_of(error), text_of(error), split(uri)[0]
    if status == 404:
        if _NO_BUCKET.search(text) or (not _NO_OBJECT.search(text) and not _has_bucket(uri)):
            return InvalidData(uri, f"there is no bucket {bucket!r}", next_step="Check the name after gs://")
        return _no_object_error(uri)
    if not status or status >= 500 or is_temporary(status, text):
        cause = describe(status) if status else cause_of(error)
        seconds = retry_after_of(error)
        return RetryLater(uri, cause, seconds) if seconds else StorageUnavailable(uri, cause)
    if status == 401 and gcs_clients.endpoint().may_renew_token:
        return StorageUnavailable(uri, f"{describe(status)}, although it accepted a token before")
    return _refusal(uri, bucket, status, text, role)


def _refusal(uri: str, bucket: str, status: int, text: str, role: str) -> InvalidData:
    if status in (401, 403):
        match = _PRINCIPAL.search(text)
        principal = match[1] if match else gcs_clients.endpoint().principal()
        principal = "allUsers" if principal == "Anonymous caller" else principal
        return InvalidData(
            uri,
            f"{principal} has no permission (HTTP {status})" if principal else f"no permission (HTTP {status})",
            next_step=f"Grant {role} on gs://{bucket} to {principal or 'the account that the job runs as'}",
        )
    if status == 416:
        # Ranges end within the listed size, so that the object became shorter after it was listed.
        return preconditions.replaced_error(uri)
    if _NO_PAYER.search(text):
        return InvalidData(
            uri,
            f"the requester pays for gs://{bucket}, and no project is named that pays",
            next_step="Name it in GOOGLE_CLOUD_QUOTA_PROJECT (on a cluster in podTemplate.env)",
        )
    message = _message(text)
    return InvalidData(uri, f"the bucket refused the request (HTTP {status}{message and ': '}{message})")


def _message(text: str) -> str:
    """Return the message in the JSON of a response; empty if there is none."""
    match = _MESSAGE.search(text)
    return str(json.loads(match[1]))[:300] if match else ""


def _no_object_error(uri: str) -> InvalidData:
    """Return the error for an object that does not exist."""
    return InvalidData(uri, "no such object", next_step="List what is there with `gcloud storage ls`")
