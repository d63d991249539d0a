"""Preconditions of a write: the version that it may replace, and the errors if another version exists."""

from __future__ import annotations

from mptraining_api.problems import InvalidData

# As `replacing`, ANY allows any version or no object; None requires that no object exists; else it is a version.
ANY = "*"


class Conflict(InvalidData):
    """Another writer was first: the object has another version than the one to be replaced."""


def conflict_error(uri: str, replacing: str | None) -> Conflict:
    """Return the error of a write that found another version than `replacing`."""
    found = "exists already" if replacing is None else "somebody else replaced it in the meantime"
    return Conflict(uri, found, next_step="See whether another run uses the same folder")


def replaced_error(uri: str) -> InvalidData:
    """Return the error for an object that was replaced after it was indexed."""
    return InvalidData(
        uri,
        "the object was replaced after it was indexed",
        next_step="Start the job again, and write changed data under a new name",
    )
