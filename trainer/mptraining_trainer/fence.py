"""Who may write into the run folder: the newest attempt, by a fence that each attempt moves when it begins.

A node that was given up may still run: its chief would go on to write checkpoints beside those of the next attempt.
`checkpoints/fence.json` names the attempt whose folder it is. It is claimed by compare-and-swap, and an attempt that
finds another version of it than its own has been superseded.
"""

from __future__ import annotations

from mptraining_api.launch import WorkerIdentity
from mptraining_api.model import Model
from mptraining_api.problems import InvalidData, Superseded
from mptraining_records.storage import preconditions, storage

FENCE = "fence.json"


class Claim(Model):
    """What stands in fence.json."""

    version: int = 1
    attempt: int
    incarnation: str


class Fence:
    """One attempt's claim to the run folder; `version` is that of fence.json with this claim in it."""

    def __init__(self, uri: str, version: str, identity: WorkerIdentity) -> None:
        self._uri = uri
        self._version = version
        self._seat = identity

    def check(self) -> None:
        """Raises Superseded when a newer attempt has claimed the folder."""
        there = storage.find(self._uri)
        if there is None or there.version != self._version:
            raise _superseded(self._uri, self._seat, _read(self._uri))


def claim(folder: str, identity: WorkerIdentity) -> Fence:
    """Claims the folder of checkpoints for this attempt. Raises Superseded when a newer one has it already.

    Of two launches of one attempt the later has it.
    """
    uri = storage.join(folder, FENCE)
    mine = Claim(attempt=identity.attempt, incarnation=identity.incarnation)
    while True:
        there = storage.find(uri)
        holder = _read(uri) if there is not None else None
        if holder is not None and holder.attempt > identity.attempt:
            raise _superseded(uri, identity, holder)
        try:
            made = storage.write(uri, mine.to_json().encode(), replacing=there.version if there is not None else None)
        except preconditions.Conflict:
            # Somebody else claimed it between the look and the write: look again.
            continue
        return Fence(uri, made.version, identity)


def _read(uri: str) -> Claim | None:
    try:
        return Claim.read(storage.read(uri))
    except (ValueError, InvalidData):
        return None


def _superseded(uri: str, identity: WorkerIdentity, holder: Claim | None) -> Superseded:
    who = "another launch" if holder is None or holder.attempt == identity.attempt else f"attempt {holder.attempt}"
    return Superseded(
        uri,
        f"{who} has taken over this run folder from attempt {identity.attempt}",
        next_step="This one stops without writing; nothing of the other is lost.",
    )
