"""Records that make a step infinite or NaN by themselves: found after a step was skipped, and left out from then on.

Under mixed_float16 a skipped step is ordinary: the loss scale was too high. So its batch is tried once more without
scaling. If it is bad then too, the rows that do it are searched for (`isolation`) and become holes, as damaged records
do under `badRecords: Skip`: the order of the others does not change. Every worker tries the same batches and comes to
the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mptraining_api.events import ExcludedRecord
from mptraining_records.reading.order import Position
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_trainer.data.dataset import SkippedRecords
from mptraining_trainer.loop.steps_per_execution import Execution
from mptraining_trainer.numerics.loss_scaling import GROWTH_STEPS
from mptraining_trainer.numerics.recovery import NonFinite, PrecisionState
from mptraining_trainer.training.build import BuildResult, RunContext
from mptraining_trainer.training.non_finite import NOT_FINITE

Keep = NDArray[np.bool_]
# See `isolated`.
Tried = Callable[[Keep, int], bool]

# Rows of a replica's batch that are tried as the one that takes the places of the others.
_FILLERS = 4


def isolated(rows: int, is_good: Tried, *, replicas: int, workers: int, most: int) -> list[int] | None:
    """The rows, at most `most` of `rows`, of which each makes a batch bad, and without which this one is good.

    `is_good(keep, filler)` tries the batch with the rows that are not kept replaced by row `filler` of the same
    replica's batch. A row is tried among good ones and not alone, since a moving variance is that of a whole batch.
    Worker r of n has the rows that are r modulo n and deals them to its replicas in equal pieces.

    None when there are no such rows: the batch is bad as a whole, or more than `most` rows are. Tries at most about
    8 * most * log2(rows) batches.
    """
    if rows == 1:
        return [0]
    size = rows // replicas
    for filler in sorted({size * part // _FILLERS for part in range(_FILLERS)}):

        def only(kept: Sequence[int], filler: int = filler) -> bool:
            return is_good(_only(rows, kept), filler)

        if not only(()):
            # One of the rows that would take the others' places is bad itself.
            continue
        found = _search(np.arange(rows), only, most)
        if found and is_good(~_only(rows, found), filler):
            owners = [(row % workers, row // workers // size) for row in found]
            # The odd one of a replica's batch is the bad one, unless it is bad without any other too.
            few = all(2 * count < size for count in Counter(owners).values())
            if few or not any(is_good(_only(rows, ()), row // workers % size) for row in found):
                return found
    return None


def _search(rows: NDArray[np.int64], is_good: Callable[[Sequence[int]], bool], most: int) -> list[int] | None:
    """Every row that is bad among good ones; None when a part is bad and no half of it, or when there are too many."""
    found: list[int] = []
    left = [rows]
    while left:
        part = left.pop()
        if len(part) == 1:
            found.append(int(part[0]))
            if len(found) > most:
                return None
            continue
        bad = [half for half in np.array_split(part, 2) if not is_good(half.tolist())]
        if not bad:
            return None
        left += bad[::-1]
    return sorted(found)


def _only(rows: int, kept: Sequence[int]) -> Keep:
    keep = np.zeros(rows, np.bool_)
    keep[list(kept)] = True
    return keep


# Of one step's rows. More than an eighth of a batch is no outlier.
_MOST_OF_A_STEP = 8
# Of all records: more is a matter of the data or of the model, and no record's.
_MOST_SHARE = 0.01
_MOST_AT_LEAST = 10
# Skipped steps that are looked into without finding a record; one more after each so many steps.
_LOOKS = 32
_STEPS_A_LOOK = GROWTH_STEPS

CAUSE = "loss, gradients or moving statistics are infinite or NaN with it, and finite without"


@dataclass(frozen=True)
class Suspects:
    """What trying a skipped step's batch once more came to.

    `bad` says whether it is bad without loss scaling too; `records` are the numbers of those which make it so, empty
    when no few records do.
    """

    bad: bool
    records: tuple[int, ...] = ()


def suspects(built: BuildResult, position: Position) -> Suspects:
    """Tries the batch of the step that begins at `position`; nothing changes. Every worker must call it."""
    context, loop = built.context, built.loop
    rows = context.batching.examples_per_step
    batch = loop.take(built.feed(position, 1))
    if loop.would_apply(batch, np.ones(rows, np.bool_), 0):
        return Suspects(False)
    found = isolated(
        rows,
        lambda keep, filler: loop.would_apply(batch, keep, filler),
        replicas=context.job.replicas,
        workers=context.share.workers,
        most=max(1, min(_MOST_OF_A_STEP, rows // 8)),
    )
    begin = context.batching.next_step(position)
    places = np.array([begin.examples + row for row in found or ()], np.int64)
    if not places.size or places.max() >= context.batching.count:
        return Suspects(True)
    return Suspects(True, tuple(context.order(begin.seed).records(begin.epoch, places).tolist()))


def located(context: RunContext, records: Sequence[int], cause: str = CAUSE) -> list[BadRecord]:
    """File, number and byte of each of these training records."""
    dataset = context.datasets.training.dataset
    shards, rows = dataset.locate(np.array(records, np.int64))
    places = zip(shards.tolist(), rows.tolist(), strict=True)
    return [dataset.shards[shard].bad_record(row, cause) for shard, row in places]


def described(records: Sequence[BadRecord]) -> str:
    """Such as "record 37 of gs://bucket/train-00000.tfrecord"; further ones are counted."""
    first = f"record {records[0].record} of {records[0].uri}"
    return first if len(records) == 1 else f"{first} and {len(records) - 1} more of the same step"


class RecordExclusion:
    """One session's, in which bad steps are skipped; `built` and `numbers` hold now, with the excluded records."""

    def __init__(
        self,
        built: BuildResult,
        numbers: PrecisionState,
        skipped: SkippedRecords,
        notice: Callable[..., None],
        *,
        fails: bool,
    ) -> None:
        """With `fails` a record that makes a step bad ends the session: the job wants no step left out."""
        self.built = built
        self.numbers = numbers
        self._skipped = skipped
        self._notice = notice
        self._fails = fails
        self._looks = float(_LOOKS)
        self._said: set[str] = set()
        skipped.exclude(located(built.context, [each.record for each in numbers.excluded]))

    def look(self, execution: Execution, before: int, steps: int, position: Callable[[int], Position]) -> bool:
        """Whether a step of this execution was skipped for records that are left out from now on, by `built.feed`.

        The arguments are those of `NonFiniteMonitor.look`. Raises NonFinite with `fails`.
        """
        self._looks = min(_LOOKS, self._looks + steps / _STEPS_A_LOOK)
        if execution.applied_steps == steps or self._looks < 1:
            return False
        self._looks -= 1
        done = min(execution.finite_steps, steps - 1)
        step, begin = before + done + 1, position(done)
        found = suspects(self.built, begin)
        if not found.bad:
            return False
        if self._fails:
            raise NonFinite(step, NOT_FINITE, position=begin)
        if not found.records:
            text = (
                "no few records explain a batch whose numbers are infinite or NaN: such batches are left out whole "
                f"(first seen at step {step})"
            )
            self._say_once("CauseNotFound", text)
            return False
        context = self.built.context
        known = {each.record for each in self.numbers.excluded}
        new = [record for record in found.records if record not in known]
        most = max(_MOST_AT_LEAST, int(_MOST_SHARE * context.batching.count))
        if len(known) + len(new) > most:
            text = f"more than {most} records make numbers infinite or NaN: batches of further ones are left out whole"
            self._say_once("TooManyExcluded", text)
            return False
        self._exclude(step, new)
        self._looks += 1
        return True

    def _exclude(self, step: int, records: Sequence[int]) -> None:
        excluded = (*self.numbers.excluded, *(ExcludedRecord(record=record, step=step) for record in records))
        self.numbers = replace(self.numbers, excluded=excluded)
        numbers = frozenset(each.record for each in excluded)
        self.built = replace(self.built, context=replace(self.built.context, excluded=numbers))
        self.built.loop.use_masks()
        if self.built.scaler is not None:
            self.built.scaler.give_back()
        bad = located(self.built.context, records)
        self._skipped.exclude(bad)
        text = f"step {step}: {described(bad)} is left out from here on: {CAUSE}; see {self._skipped.manifest}"
        self._notice("RecordExcluded", text, level="Warning")

    def _say_once(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            self._notice(topic, text, level="Warning")
