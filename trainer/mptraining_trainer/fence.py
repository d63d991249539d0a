"""Fencing of the run folder: only the newest attempt of the newest job may write.

A node that was given up may still run, and its chief would write checkpoints beside those of the next attempt.
`checkpoints/fence.json` names the job and the attempt that own the folder. Each attempt claims it by compare-and-swap
when it begins. An attempt that finds a version other than its own has been superseded. A job that is deleted and
created again is a newer job, whose first attempt takes over from the last one of the deleted job.
"""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api.launch import WorkerIdentity
from mptraining_api.model import Model
from mptraining_api.problems import InvalidData, ResumeRefused, Superseded
from mptraining_storage import preconditions, storage

FENCE = "fence.json"


class Claim(Model):
    """Content of fence.json."""

    version: int = 1
    attempt: int
    incarnation: str
    # The job's uid and creation time; empty for the uid of a local run, and in files of older versions.
    job_uid: str = ""
    job_created: str = ""

    def newer_than(self, other: Claim) -> bool:
        """Return whether this is of a newer attempt of the same job, or of another job that was created later."""
        if self.job_uid == other.job_uid:
            return self.attempt > other.attempt
        return self.job_created > other.job_created


@dataclass(frozen=True)
class Fence:
    """One attempt's claim to the run folder; `version` is the version of fence.json that holds this claim."""

    uri: str
    version: str
    mine: Claim

    def check(self) -> None:
        """Raise Superseded if a newer attempt has claimed the folder, ResumeRefused if another job has."""
        there = storage.find(self.uri)
        if there is None or there.version != self.version:
            raise _superseded(self.uri, self.mine, _read(self.uri))


def claim(folder: str, identity: WorkerIdentity) -> Fence:
    """Claim the checkpoints folder for this attempt.

    Raise Superseded if a newer attempt has claimed it already, ResumeRefused if a job that was created later has. Of
    two launches of one attempt, the later one gets the folder.
    """
    uri = storage.join(folder, FENCE)
    mine = Claim(
        attempt=identity.attempt,
        incarnation=identity.incarnation,
        job_uid=identity.job_uid,
        job_created=identity.job_created,
    )
    while True:
        there = storage.find(uri)
        holder = _read(uri) if there is not None else None
        if holder is not None and holder.newer_than(mine):
            raise _superseded(uri, mine, holder)
        try:
            made = storage.write(uri, mine.to_json().encode(), replacing=there.version if there is not None else None)
        except preconditions.Conflict:
            # Another process claimed the folder between the read and the write: read again.
            continue
        return Fence(uri, made.version, mine)


def _read(uri: str) -> Claim | None:
    try:
        return Claim.read(storage.read(uri))
    except (ValueError, InvalidData):
        return None


def _superseded(uri: str, mine: Claim, holder: Claim | None) -> Superseded | ResumeRefused:
    if holder is not None and holder.job_uid != mine.job_uid:
        at = holder.job_created or "an unknown time"
        other = (
            f"the MPTrainingJob with uid {holder.job_uid}, created at {at}"
            if holder.job_uid
            else f"a local run, started at {at}"
        )
        return ResumeRefused(
            uri,
            f"another job has taken over this run folder: {other}",
            next_step="Give each job its own output folder.",
        )
    who = "another launch" if holder is None or holder.attempt == mine.attempt else f"attempt {holder.attempt}"
    return Superseded(
        uri,
        f"{who} has taken over this run folder from attempt {mine.attempt}",
        next_step="This one stops without writing; nothing of the other is lost.",
    )
