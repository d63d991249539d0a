"""TensorBoard's event files of a run that has none, or none that can be read where TensorBoard runs."""

from __future__ import annotations

from mptraining.runs import load_run
from mptraining.tracking.scalars import scalars
from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.event_file import RUNS, EventFiles
from mptraining_storage import storage


def export_tensorboard(folder: str, to: str) -> int:
    """Write the run's scalars to `train/` and `validation/` below `to`; return their number. Raises InvalidData."""
    history = load_run(folder).history
    if not history.attempts:
        raise InvalidData(folder, "holds no events of a run", expected="the run folder of a job")
    for run in RUNS:
        if storage.list_objects(storage.join(to, run)):
            step = "Give another folder with --output."
            raise InvalidData(storage.join(to, run), "has files already", next_step=step)
    found = list(scalars(history))
    files = EventFiles(to, "exported", found[0].time if found else 0.0)
    files.add(found)
    files.flush()
    return len(found)
