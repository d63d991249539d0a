"""Errors of requests to a bucket, translated into one-line Problems for the user."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.storage import gcs_clients, preconditions, sign_in
from mptraining_records.storage.content import Compressed, ConnectionFailed, HttpError
from mptraining_records.storage.retry import (
    RetryLater,
    cause_of,
    describe,
    is_temporary,
    is_untrusted,
    retry_after_of,
    status_of,
    text_of,
)

READER = "roles/storage.objectViewer"
WRITER = "roles/storage.objectUser"
_NO_BUCKET = re.compile(r"NoSuchBucket|no bucket named|bucket does not exist", re.IGNORECASE)
_NO_OBJECT = re.compile(r"NoSuchKey|No such object|specified key does not exist", re.IGNORECASE)
_NO_PAYER = re.compile(r"requester pays bucket but no user project|UserProjectMissing", re.IGNORECASE)
_MESSAGE = re.compile(r'"message":\s*("(?:[^"\\]|\\.)*")')
# Matches "trainer@project.iam.gserviceaccount.com does not have storage.objects.get access …", a response of Google.
_PRINCIPAL = re.compile(r"(principal://[^\s\"']+|[^\s\"':]+@[^\s\"':]+|Anonymous caller) does not have")


@contextmanager
def translate_errors(uri: str, bucket: str, *, writing: bool = False, has_bucket: Callable[[], bool]) -> Iterator[None]:
    """Translate every exception of a request into a Problem about `uri`.

    `has_bucket` is called if a 404 does not tell whether the bucket or the object is missing.
    """
    import requests
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

    role = WRITER if writing else READER
    try:
        yield
    except Problem:
        raise
    except DefaultCredentialsError as error:
        found, next_step = sign_in.no_credentials(error)
        raise InvalidData(uri, found, next_step=next_step) from error
    except DataCorruption as error:
        raise StorageUnavailable(uri, "what arrived differs from what was sent (CRC32C)") from error
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
            raise InvalidData(uri, refused.found, next_step=refused.next_step) from error
        if isinstance(error, ConnectionFailed):
            raise StorageUnavailable(uri, f"the bucket cannot be reached ({error})") from error
        raise _problem(uri, bucket, cause, role, has_bucket) from error


def names_the_object(text: str) -> bool:
    """Return whether the text of a 404 response names the object as missing, not the bucket."""
    return bool(_NO_OBJECT.search(text))


def _problem(uri: str, bucket: str, error: BaseException, role: str, has_bucket: Callable[[], bool]) -> Problem:
    status, text = status_of(error), text_of(error)
    if status == 404:
        if _NO_BUCKET.search(text) or (not names_the_object(text) and not has_bucket()):
            return InvalidData(uri, f"there is no bucket {bucket!r}", next_step="Check the name after gs://")
        return no_object_error(uri)
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
    said = _message(text)
    return InvalidData(uri, f"the bucket refused the request (HTTP {status}{said and ': '}{said})")


def _message(text: str) -> str:
    """Return the message in the JSON of a response; empty if there is none."""
    found = _MESSAGE.search(text)
    return str(json.loads(found[1]))[:300] if found else ""


def no_object_error(uri: str) -> InvalidData:
    """Return the error for an object that does not exist."""
    return InvalidData(uri, "no such object", next_step="List what is there with `gcloud storage ls`")
