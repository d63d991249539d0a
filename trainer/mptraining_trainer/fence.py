"""Fencing of the run folder: only the newest attempt may write.

A node that was given up may still run, and its chief would write checkpoints beside those of the next attempt.
`checkpoints/fence.json` names the attempt that owns the folder. Each attempt claims it by compare-and-swap when it
begins. An attempt that finds a version other than its own has been superseded.
"""

from __future__ import annotations

from mptraining_api.launch import WorkerIdentity
from mptraining_api.model import Model
from mptraining_api.problems import InvalidData, Superseded
from mptraining_records.storage import preconditions, storage

FENCE = "fence.json"


class Claim(Model):
    """Content of fence.json."""

    version: int = 1
    attempt: int
    incarnation: str


class Fence:
    """One attempt's claim to the run folder; `version` is the version of fence.json that holds this claim."""

    def __init__(self, uri: str, version: str, identity: WorkerIdentity) -> None:
        self._uri = uri
        self._version = version
        self._identity = identity

    def check(self) -> None:
        """Raise Superseded if a newer attempt has claimed the folder."""
        there = storage.find(self._uri)
        if there is None or there.version != self._version:
            raise _superseded(self._uri, self._identity, _read(self._uri))


def claim(folder: str, identity: WorkerIdentity) -> Fence:
    """Claim the checkpoints folder for this attempt. Raise Superseded if a newer attempt has claimed it already.

    Of two launches of one attempt, the later one gets the folder.
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
            # Another process claimed the folder between the read and the write: read again.
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
