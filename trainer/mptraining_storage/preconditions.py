"""Stored objects with their versions, the version that a write may replace, and the errors if another one exists."""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api.problems import InvalidData

# As `replacing`, ANY allows any version or no object; None requires that no object exists; else it is a version.
ANY = "*"


@dataclass(frozen=True)
class StoredObject:
    """One file or object: `size` in bytes; `version` changes whenever the content is replaced.

    `crc32c` is that of the whole content, as reported by the bucket; None for local files.
    """

    uri: str
    size: int
    version: str
    crc32c: int | None = None

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]


class Conflict(InvalidData):
    """Another writer was first: the object has another version than the one to be replaced."""


def conflict_error(uri: str, replacing: str | None) -> Conflict:
    """Return the error of a write that found another version than `replacing`."""
    cause = "exists already" if replacing is None else "somebody else replaced it in the meantime"
    return Conflict(uri, cause, next_step="See whether another run uses the same folder")


def replaced_error(uri: str) -> InvalidData:
    """Return the error for an object that was replaced after it was indexed."""
    return InvalidData(
        uri,
        "the object was replaced after it was indexed",
        next_step="Start the job again, and write changed data under a new name",
    )
