"""Exceptions whose message is one line that states the problem and the next step.

Problem                     base class: where, found, expected, next step
├── InvalidSpec             the job can never work as it is written
├── OutsideLimits           the administrator's limits do not allow what the job asks for
├── InvalidData             records, folders or objects that cannot be read as the job specifies
├── InvalidProgram          the model or script that the job names cannot be imported or trained
├── ResumeRefused           the run folder or its checkpoint belongs to other work
├── StorageUnavailable      a bucket or a file system that does not answer; the error may be transient
│   └── StorageFull         the disk is full; it fills again in every attempt
├── Diverged                the loss or the weights stopped being finite numbers
├── Preempted               this machine is being taken away
├── PeerLost                another worker of the same job went away
└── Superseded              a newer attempt of the job has the run folder

Every class has a `reason`; `outcomes` defines the exit code and the retry budget of each reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class Problem(Exception):
    """An error that is reported to the user in one line, without a traceback.

    `where` is the field (`spec.accelerator.type`) or the file; `found` quotes the value.
    """

    reason: ClassVar[str] = "ProgramFailed"

    def __init__(self, where: str, found: str, *, expected: str = "", next_step: str = "") -> None:
        self.where = where
        self.found = found
        self.expected = expected
        self.next_step = next_step
        super().__init__(where, found)

    def __str__(self) -> str:
        line = f"{self.where}: {self.found}" if self.where else self.found
        if self.expected:
            line += f"; expected {self.expected}"
        if self.next_step:
            line += f". {self.next_step}"
        return " ".join(line.split())

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class InvalidSpec(Problem):
    reason = "InvalidSpec"


class OutsideLimits(Problem):
    reason = "OutsideLimits"


class InvalidData(Problem):
    reason = "InvalidData"


class InvalidProgram(Problem):
    reason = "InvalidProgram"


class ResumeRefused(Problem):
    reason = "ResumeRefused"


class StorageUnavailable(Problem):
    reason = "StorageUnavailable"


class StorageFull(StorageUnavailable):
    reason = "StorageFull"


class Diverged(Problem):
    reason = "Diverged"


class Preempted(Problem):
    reason = "Preempted"


class PeerLost(Problem):
    reason = "PeerLost"


class Superseded(Problem):
    reason = "Superseded"


class InvalidValue(ValueError):
    """A validator's refusal of a value, in the words of a message.

    `path` leads from the validated value to the refused one; `also` are further refusals of the same validator.
    """

    def __init__(
        self,
        found: str,
        *,
        expected: str = "",
        next_step: str = "",
        path: tuple[str | int, ...] = (),
        also: Iterable[InvalidValue] = (),
    ) -> None:
        super().__init__(str(Problem("", found, expected=expected, next_step=next_step)))
        self.found = found
        self.expected = expected
        self.next_step = next_step
        self.path = path
        self.also = tuple(also)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `"Did you mean 'x'?"` for the closest known word in any case, or an empty string if none is close."""
    spellings: dict[str, list[str]] = {}
    for each in known:
        spellings.setdefault(each.lower(), []).append(each)
    close = difflib.get_close_matches(word.lower(), list(spellings), n=1, cutoff=0.6)
    if not close:
        return ""
    best = max(spellings[close[0]], key=lambda each: difflib.SequenceMatcher(None, word, each).ratio())
    return f"Did you mean {best!r}?"
