"""Scalars of a run, and TensorBoard's event files for one that has none, or none that TensorBoard can read there."""

from __future__ import annotations

from collections.abc import Iterator

from mptraining.runs import History, load_run
from mptraining_api.outputs.scalars import Scalar, ScalarSeries
from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.event_file import RUNS, EventFiles
from mptraining_storage import storage


def scalars(history: History, step: int = -1) -> Iterator[Scalar]:
    """Yield the scalars of that step and of later ones."""
    # The point before tells whether a validation is new.
    first = max(0, int(history.curves.step.searchsorted(step)) - 1)
    series = ScalarSeries()
    for point in history.points_from(first):
        for scalar in series.at_step(point.step, point.time, point.metrics, point.gauges):
            if scalar.step >= step:
                yield scalar


def export_tensorboard(folder: str, to: str) -> int:
    """Write the run's scalars to `train/` and `validation/` below `to`; return their number. Raises InvalidData."""
    history = load_run(folder).history
    if not history.attempts:
        raise InvalidData(folder, "holds no events of a run", expected="the run folder of a job")
    for run in RUNS:
        if storage.list_objects(storage.join(to, run)):
            step = "Give another folder with --folder."
            raise InvalidData(storage.join(to, run), "has files already", next_step=step)
    exported = list(scalars(history))
    files = EventFiles(to, "exported", exported[0].time if exported else 0.0)
    files.add(exported)
    files.flush()
    return len(exported)
