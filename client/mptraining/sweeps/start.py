"""A sweep on this machine from its file or document: checked, in its folder, and driven to its end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mptraining.job_file.paths import absolute_path, typed_path
from mptraining.local.runner import TRAINER, machine_settings, require_tensorflow, this_machine, visible_gpus
from mptraining.sweeps.best_job import SWEEP_FILE
from mptraining.sweeps.display import SweepDisplay, sweep_display_here
from mptraining.sweeps.driver import Driver, continued, final_lines, gpus_of_slots, on_this_machine
from mptraining.sweeps.folder import SweepFolder
from mptraining.sweeps.sweep_file import CheckedSweep, check_sweep_file
from mptraining.sweeps.trial_runs import TrialSettings
from mptraining.sweeps.view import SweepView, counts, one_line
from mptraining_api.sweep.proposals import require_optuna
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus


@dataclass(frozen=True, slots=True)
class LocalSweep:
    """A sweep as it runs on this machine: its file, its folder, and its status so far."""

    file: Path
    sweep: MPTrainingSweep
    status: SweepStatus
    folder: SweepFolder
    parallel: int
    notes: tuple[str, ...]

    @property
    def view(self) -> SweepView:
        return SweepView(self.sweep, self.status, str(self.folder.path))

    @property
    def shown_folder(self) -> str:
        """Return the folder as the user may type it."""
        return typed_path(str(self.folder.path), Path.cwd())


def open_sweep(
    path: Path, checked: CheckedSweep | None = None, *, parallel: int = 1, output: str | None = None
) -> LocalSweep:
    """Return the sweep in the file at `path` as it runs on this machine.

    `checked` is a sweep that is in no file; its relative paths begin in the folder of `path`. The folder is `output`,
    else the job's output.uri, else runs/NAME; it is runs/NAME if the output is a bucket. Raises InvalidJobFile with
    every mistake, ResumeRefused if the folder belongs to another sweep.
    """
    checked = checked or check_sweep_file(path, here=True, settings=machine_settings(this_machine()))
    sweep, here = checked.sweep, Path.cwd()
    written = sweep.spec.job.get("output") or {}
    default = str(here / "runs" / sweep.metadata.name)
    folder_of_file = path.absolute().parent
    uri = absolute_path(output, here) if output else absolute_path(written.get("uri") or default, folder_of_file)
    folder = SweepFolder(Path(default if "://" in uri else uri))
    annotations = (sweep.metadata.annotations or {}) | {SWEEP_FILE: str(path.absolute())}
    metadata = sweep.metadata.model_copy(update={"annotations": annotations})
    sweep = on_this_machine(sweep.model_copy(update={"metadata": metadata}), parallel=parallel, output=uri)
    return LocalSweep(path, sweep, continued(folder.read(), sweep, folder), folder, parallel, checked.notes)


def run_sweep(
    opened: LocalSweep,
    *,
    display: SweepDisplay | None = None,
    command: Sequence[str] = TRAINER,
    clock: Callable[[], float] = time.time,
) -> tuple[int, SweepView]:
    """Run the sweep to its end; return the exit code for a shell, and the sweep.

    The code is 0, 1 if the sweep failed, 75 after a fault of this machine, and 130 after Ctrl-C; after the last two the
    same call continues. `command` is the command of each worker. Raises Problem before any process starts.
    """
    require_tensorflow(command)
    require_optuna(opened.sweep.spec)
    slots = gpus_of_slots(opened.sweep.spec, opened.parallel, visible_gpus(os.environ))
    display = display or sweep_display_here()
    with opened.folder.lock():
        # Another driver may have ended between the first look and the lock.
        stored = opened.folder.read()
        status = continued(stored, opened.sweep, opened.folder)
        # Run folders belong to one search; the file's uid may be that of a sweep on a cluster.
        uid = stored[0].metadata.uid if stored else str(uuid.uuid4())
        metadata = opened.sweep.metadata.model_copy(update={"uid": uid})
        sweep = opened.sweep.model_copy(update={"metadata": metadata})
        driver = Driver(sweep, status, opened.folder, TrialSettings(opened.file, command, clock), display, slots)
        for note in opened.notes:
            display.say(f"note: {note}")
        if any(counts(driver.view).values()):
            display.say(f"continues: {one_line(driver.view)}")
        else:
            display.say(
                f"{opened.sweep.metadata.name}: {opened.sweep.spec.algorithm.name}, "
                f"{driver.view.most} trials at most, {opened.parallel} at a time; folder {opened.shown_folder}"
            )
        code = driver.run()
    if driver.view.finished is not None:
        for text in final_lines(driver.view, opened.shown_folder):
            display.say(text)
    return code, driver.view
