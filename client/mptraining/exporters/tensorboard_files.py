"""TensorBoard's event files of a run that has none, or none that can be read where TensorBoard runs."""

from __future__ import annotations

from mptraining.exporters.chief_events import ChiefEvents
from mptraining_api.outputs.scalars import ScalarSeries, surviving
from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.event_file import RUNS, EventFiles
from mptraining_storage import storage


def export_tensorboard(folder: str, to: str) -> int:
    """Write the run's scalars to `train/` and `validation/` below `to`; return their number. Raises InvalidData."""
    events = ChiefEvents(folder).poll()
    if not events:
        raise InvalidData(folder, "holds no events of a run", expected="the run folder of a job")
    for run in RUNS:
        if storage.list_objects(storage.join(to, run)):
            step = "Give another folder with --output."
            raise InvalidData(storage.join(to, run), "has files already", next_step=step)
    series = ScalarSeries()
    scalars = surviving(item for event in events for item in series.add(event))
    files = EventFiles(to, "exported", events[0].time)
    files.add(sorted(scalars, key=lambda scalar: scalar.step))
    files.flush()
    return len(scalars)
