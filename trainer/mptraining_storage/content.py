"""Requests for the content of an object, whole or a range of bytes; each is sent once.

A request that takes far longer than the others is given up (`pace`): the caller requests the missing bytes again, on
another connection.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import quote

from mptraining_storage import gcs_clients
from mptraining_storage.http_connections import Response
from mptraining_storage.pace import SHORTEST_SECONDS

_RANGE = re.compile(r"bytes (\d+)-(\d+)/")
_CRC32C = re.compile(r"crc32c=([\w+/=]+)")


class HttpError(Exception):
    """A response with another status than 200 or 206; `retry_after` is in seconds, 0 without the header."""

    def __init__(self, status: int, text: str, retry_after: float) -> None:
        self.status = status
        self.retry_after = retry_after
        super().__init__(text)


class ConnectionFailed(Exception):
    """No response, or an incomplete one; the message is the cause in a few words."""


class Compressed(Exception):
    """The object is stored with a Content-Encoding, so that the service sends no ranges of it."""


class Received(NamedTuple):
    """Bytes that arrived, the generation of the object, and why there are fewer than were requested, or empty."""

    size: int
    version: str
    cause: str


def receive(bucket: str, key: str, start: int, into: memoryview) -> Received:
    """Fill `into` with the bytes from `start`; fewer at the end of the object or after a lost connection.

    Raises HttpError, Compressed, and ConnectionFailed if no byte arrived; google-auth's errors for a token.
    """
    endpoint = gcs_clients.endpoint()
    pace = endpoint.pace
    headers = {"Range": f"bytes={start}-{start + len(into) - 1}"}
    got, began = 0, time.monotonic()
    try:
        with _response(endpoint, bucket, key, pace.limit(len(into)), headers) as response:
            end = _end_of_range(response, start, start + len(into))
            cause = ""
            while start + got < end and not cause:
                try:
                    count = response.read_into(into[got : end - start])
                except OSError as error:
                    count, cause = 0, _cause(error)
                got += count
                seconds = time.monotonic() - began
                if not count:
                    cause = cause or "the connection was cut"
                elif start + got < end and seconds > SHORTEST_SECONDS and seconds > pace.limit(len(into)):
                    cause = f"the connection is slow, {got / 1e3:,.0f} kB in {seconds:.1f} s"
    finally:
        # A slow request that failed counts as well: the limit then grows while all of them are slow. A quick refusal
        # says nothing about the speed.
        seconds = time.monotonic() - began
        if got or seconds > SHORTEST_SECONDS:
            pace.add(seconds, got)
    if not got:
        raise ConnectionFailed(cause or "it sent no byte of the range")
    return Received(got, response.fields.get("x-goog-generation", ""), cause)


def receive_whole(bucket: str, key: str) -> tuple[bytes, str]:
    """Return the content of a small object, and its CRC32C in Base64 or an empty string. Raises as `receive`."""
    endpoint = gcs_clients.endpoint()
    with _response(endpoint, bucket, key, endpoint.pace.limit(0), {}) as response:
        body = response.read()
    # The hash of an object that the service expands is that of the compressed content.
    is_stored = response.fields.get("x-goog-stored-content-encoding", "identity") == "identity"
    crc32c = _CRC32C.search(response.fields.get("x-goog-hash", ""))
    return body, crc32c[1] if crc32c and is_stored else ""


def _end_of_range(response: Response, start: int, end: int) -> int:
    """Return the byte after the last one that the response sends; at most `end`."""
    if response.fields.get("x-goog-stored-content-encoding", "identity") != "identity":
        raise Compressed
    sent = _RANGE.match(response.fields.get("content-range", ""))
    if response.status != 206 or sent is None:
        raise ConnectionFailed("it sent the whole object instead of a range")
    if int(sent[1]) != start or int(sent[2]) >= end:
        raise ConnectionFailed(f"it sent {sent[0]} instead of {start}-{end - 1}")
    length = end - start if response.length is None else response.length
    return min(int(sent[2]) + 1, start + length)


@contextmanager
def _response(
    endpoint: gcs_clients.Endpoint, bucket: str, key: str, timeout: float, fields: dict[str, str]
) -> Iterator[Response]:
    """Send the request and yield the response with status 200 or 206.

    The connection is kept for other requests if the response was read to its end, and closed otherwise.
    """
    headers = endpoint.authorization() | fields
    target = f"/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}?alt=media"
    connections = endpoint.connections
    connection = response = None
    try:
        connection = connections.acquire()
        connection.settimeout(min(timeout, gcs_clients.READING[1]))
        response = connections.get(connection, target, headers)
        endpoint.record_response(response.status)
        if response.status not in (200, 206):
            text = response.read().decode(errors="replace")
            if response.status == 401:
                endpoint.renew_token(headers)
            raise HttpError(response.status, text, seconds_of(response.fields.get("retry-after")))
        yield response
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectionFailed(_cause(error)) from error
    finally:
        if connection and response and response.length == 0 and response.keeps_open:
            connections.release(connection)
        elif connection:
            connection.close()


def seconds_of(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 without one. Google sends seconds, not a date."""
    return float(retry_after) if retry_after and retry_after.strip().isdigit() else 0.0


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)).partition("\n")[0][:200]
