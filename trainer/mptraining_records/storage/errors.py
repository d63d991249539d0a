"""Errors of obstore and google-cloud-storage, translated into one-line Problems for the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.storage import gcs_clients, preconditions, sign_in
from mptraining_records.storage.retry import cause_of, is_temporary, is_untrusted, status_of

READER = "roles/storage.objectViewer"
WRITER = "roles/storage.objectUser"
_NO_BUCKET = re.compile(r"NoSuchBucket|no bucket named|bucket does not exist", re.IGNORECASE)
_NO_OBJECT = re.compile(r"NoSuchKey|No such object|specified key does not exist", re.IGNORECASE)
# Matches "trainer@project.iam.gserviceaccount.com does not have storage.objects.get access …", a response of Google.
_PRINCIPAL = re.compile(r"(principal://[^\s\"']+|[^\s\"':]+@[^\s\"':]+|Anonymous caller) does not have")


@contextmanager
def translate_errors(uri: str, bucket: str, *, writing: bool = False, has_bucket: Callable[[], bool]) -> Iterator[None]:
    """Translate every exception of the two clients into a Problem about `uri`.

    `has_bucket` is called if a 404 does not tell whether the bucket or the object is missing.
    """
    import requests
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from obstore.exceptions import BaseError

    role = WRITER if writing else READER
    try:
        yield
    except Problem:
        raise
    except DefaultCredentialsError as error:
        raise _no_token(uri, sign_in.no_credentials(error)) from error
    except DataCorruption as error:
        raise StorageUnavailable(uri, "what arrived differs from what was sent (CRC32C)") from error
    except FileNotFoundError as error:
        raise _problem(uri, bucket, 404, str(error), "", role, has_bucket) from error
    except BaseError as error:
        text = str(error)
        refused = sign_in.find_refusal(text)
        if refused is not None:
            raise _no_token(uri, refused) from error
        found = re.search(r"status code: (\d{3})", text)
        if found:
            gcs_clients.endpoint().has_responded = True
        raise _problem(
            uri, bucket, int(found[1]) if found else 0, text, _obstore_cause(text), role, has_bucket
        ) from error
    except (GoogleAPICallError, RetryError, InvalidResponse, requests.RequestException, GoogleAuthError) as error:
        cause: BaseException = error
        if isinstance(error, RetryError) and error.__cause__ is not None:
            cause = error.__cause__
        if is_untrusted(cause):
            raise InvalidData(
                uri,
                f"the certificate of the bucket's server is not trusted ({cause_of(cause)})",
                next_step="Name the authority's certificate in SSL_CERT_FILE and REQUESTS_CA_BUNDLE",
            ) from error
        refused = sign_in.refusal(cause) if isinstance(cause, GoogleAuthError) else None
        if refused is not None:
            raise _no_token(uri, refused) from error
        raise _problem(uri, bucket, status_of(cause), str(cause), cause_of(cause), role, has_bucket) from error


def names_the_object(text: str) -> bool:
    """Return whether the text of a 404 response names the object as missing, not the bucket."""
    return bool(_NO_OBJECT.search(text))


def _problem(
    uri: str, bucket: str, status: int, text: str, cause: str, role: str, has_bucket: Callable[[], bool]
) -> Problem:
    if status == 404:
        if _NO_BUCKET.search(text) or (not names_the_object(text) and not has_bucket()):
            return no_bucket_error(uri, bucket)
        return InvalidData(uri, "no such object", next_step="List what is there with `gcloud storage ls`")
    if status in (401, 403):
        return _permission_denied(uri, bucket, status, text, role)
    if status and not is_temporary(status) and status < 500:
        # Ranges end within the listed size, so that 416 means that the object became shorter after it was listed.
        refused = InvalidData(uri, f"the bucket refused the request (HTTP {status})")
        return preconditions.replaced_error(uri) if status == 416 else refused
    return StorageUnavailable(uri, cause or f"the bucket answered HTTP {status}")


def no_bucket_error(uri: str, bucket: str) -> InvalidData:
    """Return the error for a bucket that does not exist."""
    return InvalidData(uri, f"there is no bucket {bucket!r}", next_step="Check the name after gs://")


def _permission_denied(uri: str, bucket: str, status: int, text: str, role: str) -> InvalidData:
    match = _PRINCIPAL.search(text)
    principal = match[1] if match else gcs_clients.endpoint().principal()
    if principal == "Anonymous caller":
        principal = "allUsers"
    found = f"{principal} has no permission (HTTP {status})" if principal else f"no permission (HTTP {status})"
    grantee = principal or "the account that the job runs as"
    return InvalidData(uri, found, next_step=f"Grant {role} on gs://{bucket} to {grantee}")


def _no_token(uri: str, refused: sign_in.Refusal) -> InvalidData:
    return InvalidData(uri, refused.found, next_step=refused.next_step)


def _obstore_cause(text: str) -> str:
    status = re.search(r"status code: (\d{3})", text)
    if status:
        return f"the bucket answered HTTP {status[1]}"
    unanswered = re.search(r"credential provider: \w+: (.*)", text)
    first = unanswered[1] if unanswered else text.partition("\n")[0]
    return f"the bucket cannot be reached ({first.rpartition(' - ')[2] or first})"
