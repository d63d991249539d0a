"""Output of the program, kept in the run folder beside its events.

Python's standard output and standard error are copied. What C++ code and child processes write to the file descriptors
goes to the pod's log alone: a pipe between them and the log would lose the last lines of a crash, because the
container's processes die with the trainer. A local run's parent process reads all of it, and keeps it in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from mptraining_api.launch import OUTPUT_KEPT, WorkerIdentity
from mptraining_api.run_folder import log_file
from mptraining_storage.bounded_log import LogWriter
from mptraining_storage.outbox import Outbox
from mptraining_trainer.report.secrets import SecretValues
from mptraining_trainer.report.telemetry import as_whole_lines


class ProgramOutput:
    """Copies standard output and standard error until `close`; writes nothing before `start`.

    Create it before other objects take `sys.stdout`.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        folder: str,
        secrets: SecretValues,
        environment: Mapping[str, str],
        outbox: Outbox,
    ) -> None:
        self._streams = ExitStack()
        self._writer: LogWriter | None = None
        if environment.get(OUTPUT_KEPT):
            return
        name = partial(log_file, identity.attempt, identity.incarnation, identity.index)
        self._writer = LogWriter(folder, name, redact=secrets.redact, on_failure=self._warn, outbox=outbox)
        for stream in ("stdout", "stderr"):
            before = getattr(sys, stream)
            copied = as_whole_lines(before)
            copied.copy = self._writer.add
            setattr(sys, stream, copied)
            self._streams.callback(setattr, sys, stream, before)
            self._streams.callback(setattr, copied, "copy", lambda _: None)
            self._streams.callback(copied.flush)

    def start(self) -> None:
        """Begin to write; call it when the run folder is known to be this job's."""
        if self._writer is not None:
            self._writer.start()

    def close(self) -> None:
        """Restore the streams and write the rest; give up if storage is slow."""
        self._streams.close()
        if self._writer is not None:
            self._writer.close()

    def _warn(self, message: str) -> None:
        # Not by an event, whose folder is the same.
        sys.__stderr__.write(f"warning: the program's output is not kept: {message}\n")  # type: ignore[union-attr]
