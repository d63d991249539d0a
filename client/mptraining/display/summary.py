"""Summary of a run from its events, and the final lines after success; on a cluster or on this machine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from mptraining.display.text import counted, duration, metrics
from mptraining_api.events import Event, Finished, Progress, Saved, Started


@dataclass
class RunSummary:
    """Whether a worker has started to train, the last saved step, and the Finished event of each worker."""

    started: bool = False
    saved: int | None = None
    predicts: bool = False
    finished: dict[int, Finished] = field(default_factory=dict)

    def add(self, worker: int, event: Event) -> None:
        self.started = self.started or isinstance(event, (Started, Progress, Saved))
        match event:
            case Started():
                self.predicts = event.purpose == "Prediction"
                if worker == 0 and event.first_step:
                    self.saved = event.first_step
            case Saved():
                self.saved = event.step
            case Finished():
                self.finished[worker] = event


def success_lines(
    finished: Finished | None, folder: str | None, *, job: str | None = None, predicts: bool = False
) -> tuple[str, ...]:
    """Return the final lines after success; `folder` is None for a cluster job without a run folder.

    `job` is the name by which `mptj` finds a cluster's job, whose folder may be a path of its pods; "" for a deleted
    job. A run that `predicts` has no metrics over steps, so that there is nothing to compare.
    """
    if finished is None:
        return ("Ended without a report of the result.",)
    first = "Succeeded with a warning" if finished.warnings else "Succeeded"
    if finished.step is not None:
        first += f": {counted(finished.step, 'step')}"
    if finished.seconds is not None:
        first += f" in {duration(finished.seconds)}"
    rows = [
        *(("warning", text) for text in finished.warnings or ()),
        ("metrics", metrics(finished.metrics)),
        ("numbers", _numbers(finished)),
        ("data", _data(finished)),
    ]
    if predicts:
        rows.append(("result", finished.message))
    elif folder is not None:
        rows.append(("run folder", folder))
        if finished.model is not None:
            below = "://" not in finished.model and not finished.model.startswith("/")
            rows.append(("model", f"{folder.rstrip('/')}/{finished.model}" if below else finished.model))
        run = shlex.quote(folder) if job is None or "://" in folder else job
        rows.append(("next", f"mptj compare {run}" if run else ""))
    return (first, *(f"  {name:<10}  {value}" for name, value in rows if value))


def _numbers(finished: Finished) -> str:
    """Return the recoveries from non-finite numbers; empty if there were none."""
    times = finished.recoveries or 0
    return f"rolled back {times} {'time' if times == 1 else 'times'}, ended under {finished.precision}" if times else ""


def _data(finished: Finished) -> str:
    """Return the time spent on waiting for input data, as far as it was measured."""
    parts = []
    if finished.first_record_seconds is not None:
        parts.append(f"first batch after {duration(finished.first_record_seconds)}")
    if finished.input_bound_percent is not None:
        parts.append(f"waited for data {finished.input_bound_percent:.0f}% of the time")
    return ", ".join(parts)
