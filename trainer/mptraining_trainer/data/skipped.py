"""Records that a run leaves out, damaged or with bad values: named in a manifest in the run folder, and reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mptraining_api import run_folder
from mptraining_api.problems import Problem
from mptraining_records.index import quarantine
from mptraining_records.reading.reader import RecordReader
from mptraining_records.storage import storage
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_trainer.worker import Worker


class SkippedRecords:
    """What the readers of one worker skipped so far."""

    def __init__(self, worker: Worker, readers: Sequence[RecordReader]) -> None:
        self._worker = worker
        self._readers = tuple(readers)
        self._excluded: list[BadRecord] = []
        self._saved = 0
        self._said = 0

    @property
    def all(self) -> tuple[BadRecord, ...]:
        """The damaged ones, then those that are left out for their values."""
        return (*self._damaged, *self._excluded)

    @property
    def manifest(self) -> str:
        """The URI of what `publish` writes."""
        seat = self._worker.seat
        folder = storage.join(self._worker.folder, run_folder.QUARANTINE)
        return f"{folder}/{run_folder.quarantine_name(seat.attempt, seat.incarnation, seat.index)}.json"

    @property
    def _damaged(self) -> tuple[BadRecord, ...]:
        return tuple(bad for reader in self._readers for bad in reader.skipped)

    def exclude(self, records: Sequence[BadRecord]) -> None:
        """Records that every worker leaves out for their values; the chief alone writes them down."""
        if self._worker.seat.is_chief:
            self._excluded += records

    def publish(self, *, last: bool = False) -> None:
        """Writes the manifest anew when more were skipped since. They are told at the first time and the last."""
        skipped = self.all
        seat = self._worker.seat
        name = run_folder.quarantine_name(seat.attempt, seat.incarnation, seat.index)
        folder = storage.join(self._worker.folder, run_folder.QUARANTINE)
        if len(skipped) > self._saved:
            quarantine.save(folder, name, skipped)
            self._saved = len(skipped)
        damaged = self._damaged
        if len(damaged) > self._said and (last or not self._said):
            self._said = len(damaged)
            counted = "1 damaged record" if len(damaged) == 1 else f"{len(damaged)} damaged records"
            text = f"{counted} left out, the first in {damaged[0].uri}; all are named in {self.manifest}"
            self._worker.telemetry.notice("BadRecordsSkipped", text, level="Warning")

    @contextmanager
    def published(self) -> Iterator[None]:
        """Publishes at the end of the block, and after an error too: it may be that there were too many."""
        try:
            yield
        except BaseException:
            with suppress(Problem):
                self.publish(last=True)
            raise
        self.publish(last=True)
