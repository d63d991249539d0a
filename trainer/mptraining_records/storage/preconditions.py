"""Which content of an object is meant: what a write may replace, and what to say when another one is there."""

from __future__ import annotations

from mptraining_api.problems import InvalidData

# For `replacing`: whatever is there, or nothing. None means that nothing may be there, else it is a version.
ANY = "*"


class Conflict(InvalidData):
    """Somebody else wrote the object first: another version is there than the one to be replaced."""


def conflict(uri: str, replacing: str | None) -> Conflict:
    """What to say when a write found something else than `replacing`."""
    said = "exists already" if replacing is None else "somebody else replaced it in the meantime"
    return Conflict(uri, said, next_step="See whether another run uses the same folder")


def replaced(uri: str) -> InvalidData:
    """What to say when an object is not the one that was indexed."""
    return InvalidData(
        uri,
        "the object was replaced after it was indexed",
        next_step="Start the job again, and write changed data under a new name",
    )
