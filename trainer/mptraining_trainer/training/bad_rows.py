"""Detection and exclusion of records that make a step's numbers infinite or NaN.

Under mixed_float16 a skipped step is normal: the loss scale was too high. So the batch of a skipped step is tried once
more without loss scaling. If it is bad then too, `isolate_bad_rows` searches for the rows that cause it. Their records
are skipped from then on, as damaged records are under `badRecords: Skip`: the order of the other records does not
change. Every worker tries the same batches and gets the same result.
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
# `is_good` of `isolate_bad_rows`.
IsGood = Callable[[Keep, int], bool]

# Number of rows of a replica's batch that are tried as the filler.
_FILLERS = 4


def isolate_bad_rows(rows: int, is_good: IsGood, *, replicas: int, workers: int, max_rows: int) -> list[int] | None:
    """Return the rows, at most `max_rows`, each of which makes a batch bad and without which this one is good.

    `is_good(keep, filler)` tries the batch with each row that is not kept replaced by row `filler` of the same
    replica's batch. A row is tried among good rows and not alone, because a moving variance depends on the whole batch.
    Worker r of n has the rows that are r modulo n, and splits them over its replicas in equal pieces.

    Return None if there are no such rows: the batch is bad as a whole, or more than `max_rows` rows are bad. At most
    about 8 * max_rows * log2(rows) batches are tried.
    """
    if rows == 1:
        return [0]
    size = rows // replicas
    for filler in sorted({size * part // _FILLERS for part in range(_FILLERS)}):

        def only(kept: Sequence[int], filler: int = filler) -> bool:
            return is_good(_mask(rows, kept), filler)

        if not only(()):
            # One of the filler rows is bad itself.
            continue
        found = _search(np.arange(rows), only, max_rows)
        if found and is_good(~_mask(rows, found), filler):
            owners = [(row % workers, row // workers // size) for row in found]
            # Only a minority of a replica's batch can be bad, unless each of the rows is bad without any other too.
            few = all(2 * count < size for count in Counter(owners).values())
            if few or not any(is_good(_mask(rows, ()), row // workers % size) for row in found):
                return found
    return None


def _search(rows: NDArray[np.int64], is_good: Callable[[Sequence[int]], bool], max_rows: int) -> list[int] | None:
    """Return each row that is bad among good rows; None if a part is bad but no half of it, or for too many rows."""
    found: list[int] = []
    left = [rows]
    while left:
        part = left.pop()
        if len(part) == 1:
            found.append(int(part[0]))
            if len(found) > max_rows:
                return None
            continue
        bad = [half for half in np.array_split(part, 2) if not is_good(half.tolist())]
        if not bad:
            return None
        left += bad[::-1]
    return sorted(found)


def _mask(rows: int, kept: Sequence[int]) -> Keep:
    keep = np.zeros(rows, np.bool_)
    keep[list(kept)] = True
    return keep


# Limit of bad rows in a step, beside an eighth of the batch: more than that are not outliers.
_MOST_OF_A_STEP = 8
# Limit of excluded records, as a share of all records: more point to the data set or the model.
_MOST_SHARE = 0.01
_MOST_AT_LEAST = 10
# Budget of searches that find no record; one more is allowed after each so many steps.
_SEARCHES = 32
_STEPS_PER_SEARCH = GROWTH_STEPS

CAUSE = "loss, gradients or moving statistics are infinite or NaN with it, and finite without"


@dataclass(frozen=True)
class Suspects:
    """Result of trying a skipped step's batch once more.

    `bad`: the batch is bad without loss scaling too. `records`: the numbers of the records that cause it, empty if no
    small set of records does.
    """

    bad: bool
    records: tuple[int, ...] = ()


def find_suspects(built: BuildResult, position: Position) -> Suspects:
    """Try the batch of the step at `position` without changing any state. Every worker must call it."""
    context, loop = built.context, built.loop
    rows = context.batching.examples_per_step
    batch = loop.next_batch(built.make_iterator(position, 1))
    if loop.is_step_finite(batch, np.ones(rows, np.bool_), 0):
        return Suspects(False)
    found = isolate_bad_rows(
        rows,
        lambda keep, filler: loop.is_step_finite(batch, keep, filler),
        replicas=context.job.replicas,
        workers=context.share.workers,
        max_rows=max(1, min(_MOST_OF_A_STEP, rows // 8)),
    )
    begin = context.batching.next_step(position)
    places = np.array([begin.examples + row for row in found or ()], np.int64)
    if not places.size or places.max() >= context.batching.count:
        return Suspects(True)
    return Suspects(True, tuple(context.order(begin).records(begin.epoch, places).tolist()))


def locate_records(context: RunContext, records: Sequence[int], cause: str = CAUSE) -> list[BadRecord]:
    """Return the file, number and byte offset of each of these training records."""
    dataset = context.datasets.training.dataset
    return [dataset.bad_record(record, cause) for record in records]


def describe_records(records: Sequence[BadRecord]) -> str:
    """Return text such as "record 37 of gs://bucket/train-00000.tfrecord"; further records are only counted."""
    first = f"record {records[0].record} of {records[0].uri}"
    return first if len(records) == 1 else f"{first} and {len(records) - 1} more of the same step"


class RecordExclusion:
    """Record exclusion of one session that skips bad steps.

    `built` and `precision_state` include the excluded records.
    """

    def __init__(
        self,
        built: BuildResult,
        precision_state: PrecisionState,
        skipped: SkippedRecords,
        notice: Callable[..., None],
        *,
        fail_on_non_finite: bool,
        applied: bool = True,
    ) -> None:
        """With `fail_on_non_finite`, a step that is bad without loss scaling ends the session.

        `applied`: a step was applied before this session.
        """
        self.built = built
        self.precision_state = precision_state
        self._skipped = skipped
        self._notice = notice
        self._fail_on_non_finite = fail_on_non_finite
        self._searches_left = float(_SEARCHES)
        # Until a step is applied, the dynamic loss scale is the likely cause, and a search traces the model once more.
        self._searches = applied or fail_on_non_finite or built.scaler is None or not built.scaler.dynamic
        self._noticed: set[str] = set()
        skipped.exclude(locate_records(built.context, [each.record for each in precision_state.excluded]))

    def check(self, execution: Execution, before: int, steps: int, position: Callable[[int], Position]) -> bool:
        """Return whether a step was skipped because of records that `built.make_iterator` now excludes.

        The arguments are those of `NonFiniteMonitor.check`. Raise NonFinite with `fail_on_non_finite`.
        """
        self._searches_left = min(_SEARCHES, self._searches_left + steps / _STEPS_PER_SEARCH)
        searches = self._searches or execution.finite_steps > 0
        self._searches = searches or execution.applied_steps > 0
        if execution.applied_steps == steps or self._searches_left < 1 or not searches:
            return False
        self._searches_left -= 1
        done = min(execution.finite_steps, steps - 1)
        step, begin = before + done + 1, position(done)
        found = find_suspects(self.built, begin)
        if not found.bad:
            return False
        if self._fail_on_non_finite:
            raise NonFinite(step, NOT_FINITE, position=begin)
        if not found.records:
            text = (
                "no few records explain a batch whose numbers are infinite or NaN: such batches are skipped whole "
                f"(first seen at step {step})"
            )
            self._notice_once("CauseNotFound", text)
            return False
        context = self.built.context
        known = {each.record for each in self.precision_state.excluded}
        new = [record for record in found.records if record not in known]
        most = max(_MOST_AT_LEAST, int(_MOST_SHARE * context.batching.count))
        if len(known) + len(new) > most:
            text = f"more than {most} records make numbers infinite or NaN: batches of further ones are skipped whole"
            self._notice_once("TooManyExcluded", text)
            return False
        self._exclude(step, new)
        self._searches_left += 1
        return True

    def _exclude(self, step: int, records: Sequence[int]) -> None:
        excluded = (*self.precision_state.excluded, *(ExcludedRecord(record=record, step=step) for record in records))
        self.precision_state = replace(self.precision_state, excluded=excluded)
        record_numbers = frozenset(each.record for each in excluded)
        self.built = replace(self.built, context=replace(self.built.context, excluded=record_numbers))
        self.built.loop.use_masks()
        if self.built.scaler is not None:
            self.built.scaler.undo_halving()
        bad = locate_records(self.built.context, records)
        self._skipped.exclude(bad)
        text = f"step {step}: {describe_records(bad)} is skipped from here on: {CAUSE}; see {self._skipped.manifest}"
        self._notice("RecordExcluded", text, level="Warning")

    def _notice_once(self, topic: str, text: str) -> None:
        if topic not in self._noticed:
            self._noticed.add(topic)
            self._notice(topic, text, level="Warning")
