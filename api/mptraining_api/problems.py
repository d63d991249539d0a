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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """A field of the resource: `spec.training.epochs`."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class ArgumentPlace:
    """An argument of the Python API that `mptj` has as an option: `output=…` and `--run-folder`."""

    python: str
    option: str

    def __str__(self) -> str:
        return self.python


# Where the user corrects it. Each surface (Python, `mptj`, the operator) names it in its own words: `Problem.renamed`.
Place = FieldPlace | ArgumentPlace


class Problem(Exception):
    """An error that is reported to the user in one line, without a traceback.

    `where` is the place to correct, or the name of a file or an object; a path that begins with `spec.` or `metadata.`
    is a field, and may be followed by the file that it names. `found` quotes the value. `next_step` is a sentence; as a
    sequence its parts may be places.
    """

    reason: ClassVar[str] = "ProgramFailed"

    def __init__(
        self, where: str | Place, found: str, *, expected: str = "", next_step: str | Sequence[str | Place] = ""
    ) -> None:
        self.at(where)
        self.found = found
        self.expected = expected
        self.step_parts: tuple[str | Place, ...] = (next_step,) if isinstance(next_step, str) else tuple(next_step)
        super().__init__(where, found)

    @property
    def where(self) -> str:
        return f"{self.place}: {self._named_by_it}" if self._named_by_it else str(self.place)

    @property
    def field(self) -> str | None:
        """The path of the field to correct; None for another place."""
        return self.place.path if isinstance(self.place, FieldPlace) else None

    @property
    def next_step(self) -> str:
        return "".join(map(str, self.step_parts))

    def at(self, where: str | Place) -> Self:
        """Move the problem to another place, such as the same field of an outer document; return it."""
        self.place, self._named_by_it = where, ""
        if isinstance(where, str) and where.startswith(("spec.", "metadata.")):
            path, _, self._named_by_it = where.partition(": ")
            self.place = FieldPlace(path)
        return self

    def renamed(self, name: Callable[[Place], str | Place]) -> Self:
        """Replace each place by its name on the surface that shows the problem; return the problem."""
        self.place = self.place if isinstance(self.place, str) else name(self.place)
        self.step_parts = tuple(part if isinstance(part, str) else name(part) for part in self.step_parts)
        return self

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
    """Return `"Did you mean 'x'?"` for the closest known word in any case, or an empty string if none is close.

    The beginning of a name, of three letters or more, is closest: val to validation, obj to objective and not to job.
    """
    spellings: dict[str, list[str]] = {}
    for name in known:
        spellings.setdefault(name.lower(), []).append(name)
    longer = (name for name in spellings if len(word) >= 3 and name.startswith(word.lower()))
    close = sorted(longer, key=len) or difflib.get_close_matches(word.lower(), list(spellings), n=1, cutoff=0.6)
    if not close:
        return ""
    best = max(spellings[close[0]], key=lambda name: difflib.SequenceMatcher(None, word, name).ratio())
    return f"Did you mean {best!r}?"
