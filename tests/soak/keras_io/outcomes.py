"""The outcome of a run, in the four kinds of the table: ok, refused by name, as plain Keras, our fault."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.soak.keras_io.runs import Run
from tests.soak.keras_io.variants import FLOAT32, PLAIN, Variant

NO_FUNCTION, TIMEOUT = "NoFunction", "Timeout"
# The trainer's reasons for jobs that it refuses to start.
_REFUSALS = ("Refused", "InvalidSpec", "InvalidProgram", "InvalidData")
# A function program whose building or tracing raised is `InvalidProgram` too: that is no refusal by name.
_RAISED = re.compile(r" raised \w*(?:Error|Exception)\b")
_FOLDER = re.compile(r"(?<!\w)/[^\s'\":]*/(?=[\w.-]+)")
_ESCAPE = re.compile(r"\x1b\[\d*m")
# Of losses in float32 on one device, against the same script under plain Keras.
TOLERANCE = 1e-5


class Kind(enum.Enum):
    OK = "ok"
    REFUSED = "refused"
    AS_PLAIN = "as plain Keras"
    OURS = "fails"
    NONE = "-"


@dataclass(frozen=True)
class Outcome:
    kind: Kind
    # The reason in the trainer's or Keras' words; for ok, a note if there is one.
    note: str = ""


def of(run: Run, runs: Mapping[tuple[str, str], Run]) -> Outcome:
    """Return the outcome of `run` among all `runs`, by script and variant."""
    variant = Variant.parse(run.variant)
    if run.reason == NO_FUNCTION:
        return Outcome(Kind.NONE, run.message)
    if run.reason == TIMEOUT:
        return Outcome(Kind.NONE, "not at its end within the time that a run has")
    if variant.kind == "plain":
        return Outcome(Kind.OK if run.succeeded else Kind.AS_PLAIN, "" if run.succeeded else first_line(run))
    plain = runs.get((run.script, str(PLAIN)))
    if run.succeeded:
        return Outcome(Kind.OK, _difference(run, plain) if variant == Variant("script") else "")
    if run.reason in _REFUSALS and not _RAISED.search(run.message):
        return Outcome(Kind.REFUSED, first_line(run))
    others = [runs[key] for key in ((run.script, str(each)) for each in compared(run)) if key in runs]
    alike = any(not each.succeeded and _kind_of_error(each) in run.message for each in others)
    return Outcome(Kind.AS_PLAIN if alike else Kind.OURS, first_line(run))


def compared(run: Run) -> tuple[Variant, ...]:
    """Return the runs of plain Keras that show whether a failure of `run` is Keras' own."""
    variant = Variant.parse(run.variant)
    # Where plain Keras fails with several devices for another reason, the policy may be this one's.
    return tuple(dict.fromkeys((PLAIN, variant.plain, Variant("plain", 1, variant.policy))))


def first_line(run: Run) -> str:
    """Return the error of a failed run, in one line."""
    text = without_folders(run.message).strip().splitlines()
    return text[0] if text else run.reason


def without_folders(text: str) -> str:
    """Return `text` with the bare names of files, and without a terminal's colours."""
    return _ESCAPE.sub("", _FOLDER.sub("", text))


def losses(fit: Mapping[str, Any]) -> list[float]:
    """Return every loss that one fit reported, in order."""
    return [
        math.nan if value is None else value
        for name, values in fit["history"].items()
        if name.endswith("loss")
        for value in values
    ]


def _difference(run: Run, plain: Run | None) -> str:
    """Compare the losses of all fits with those of plain Keras; empty when they are equal."""
    if plain is None or not plain.succeeded:
        return ""
    if len(run.fits) != len(plain.fits):
        return f"{len(run.fits)} fits, {len(plain.fits)} under plain Keras"
    for number, (ours, theirs) in enumerate(zip(run.fits, plain.fits, strict=True), start=1):
        pairs = zip(losses(ours), losses(theirs), strict=False)
        worst = max((_apart(one, other) for one, other in pairs), default=0.0)
        if worst > TOLERANCE:
            which = "" if len(run.fits) == 1 else f" from fit {number} of {len(run.fits)} on"
            return f"losses{which} {worst:.1g} apart from plain Keras"
    return ""


def _apart(one: float, other: float) -> float:
    if math.isnan(one) and math.isnan(other):
        return 0.0
    return abs(one - other) / max(abs(other), 1e-6)


def _kind_of_error(run: Run) -> str:
    """Return `ValueError` of `ValueError: …`; a timeout or an end without a message is no error to compare with."""
    return run.message.partition(":")[0].rpartition(".")[2] or "\0"


def policy_of(fits: list[dict[str, Any]]) -> str:
    """Return the dtype in which most layers of the fitted models computed."""
    counts: dict[str, int] = {}
    for fit in fits:
        for dtype, number in fit["layers"].items():
            counts[dtype] = counts.get(dtype, 0) + number
    return max(counts, key=lambda each: counts[each], default=FLOAT32)
