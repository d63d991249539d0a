"""Driver of a sweep on this machine: observes the trials' jobs, asks the plan, and applies it, until the sweep ends.

The order is that of the operator on a cluster: the status is written first, then a job is created. A driver that is
killed anywhere, even with SIGKILL, therefore loses no trial and repeats none; its successor resumes the jobs that have
not ended from their checkpoints.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mptraining.display.text import counted
from mptraining.local.processes import Signals
from mptraining.local.runner import RUN_FOLDER, VISIBLE_GPUS
from mptraining.sweeps.display import SweepDisplay
from mptraining.sweeps.folder import JobEnd, JobRecord, SweepFolder
from mptraining.sweeps.trial_runs import Interrupted, TrialRun, TrialSettings
from mptraining.sweeps.view import SweepView, best_text, counts_text, newly_ended
from mptraining_api.accelerators import canonical_type, catalogue
from mptraining_api.events import Progress
from mptraining_api.problems import InvalidSpec, ResumeRefused
from mptraining_api.sweep.actions import CreateJob, DeleteJob, TrialJob
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.search_space import search_digest
from mptraining_api.sweep.spec import MPTrainingSweep, SweepSpec, Trials
from mptraining_api.sweep.status import TRIAL, SweepPhase, SweepStatus
from mptraining_api.sweep.trial_transitions import reopened

# How often the display gets the progress of the trials.
TICK_SECONDS = 0.25
MACHINE_FAULT = 75
_OF_THE_END = ("Finished", "Complete", "Failed", "Stalled")


def continued(
    stored: tuple[MPTrainingSweep, SweepStatus] | None, sweep: MPTrainingSweep, folder: SweepFolder
) -> SweepStatus:
    """Return the status from which the sweep continues in its folder: an empty one if it is new.

    Limits may change between two starts; a sweep that had reached one continues if they allow more. Raises
    ResumeRefused if the folder belongs to another search.
    """
    if stored is None:
        return SweepStatus()
    before, status = stored
    for name in ("objective", "algorithm", "parameters", "job"):
        if getattr(before.spec, name) != getattr(sweep.spec, name):
            raise ResumeRefused(
                str(folder.path),
                f"the sweep there has another spec.{name}, and its trials cannot be compared",
                next_step=("Choose another folder, ", RUN_FOLDER, ", or delete this one."),
            )
    if status.start_time is not None:
        # The search is the same, compared field by field; another version may write it, and so digest it, differently.
        status = status.model_copy(update={"search_digest": search_digest(sweep.spec)})
    if _limits(before.spec) == _limits(sweep.spec):
        return status
    lasting = [condition for condition in status.conditions or () if condition.type not in _OF_THE_END]
    trials = list(map(reopened, status.trials or ()))
    update = {"conditions": lasting or None, "completion_time": None, "phase": SweepPhase.RUNNING}
    return status.model_copy(update=update | {"trials": trials or None})


def _limits(spec: SweepSpec) -> tuple[object, object]:
    """Return what ends a sweep. How many trials run at a time does not."""
    return (spec.trials or Trials()).model_copy(update={"parallel": None}), spec.stop


def on_this_machine(sweep: MPTrainingSweep, *, parallel: int, output: str) -> MPTrainingSweep:
    """Return the sweep with `parallel` trials at a time and the folder `output`, an absolute path or URI.

    What suspends or deletes it on a cluster is left out.
    """
    trials = (sweep.spec.trials or Trials()).model_copy(update={"parallel": parallel})
    job = {**sweep.spec.job, "output": {"uri": output}}
    spec = sweep.spec.model_copy(update={"trials": trials, "job": job, "run_policy": None})
    return sweep.model_copy(update={"spec": spec})


def gpus_of_slots(spec: SweepSpec, parallel: int, gpus: Sequence[str] | None) -> list[Mapping[str, str]]:
    """Return the environment of each of `parallel` places for a trial, so that no two trials share a GPU.

    `gpus` are the ids of the GPUs that this process may use. Raises InvalidSpec if there are too few.
    """
    accelerator = spec.job.get("accelerator") or {}
    known = catalogue().get(canonical_type(str(accelerator.get("type"))))
    if parallel == 1 or not gpus or known is None or known.kind != "gpu":
        return [{}] * parallel
    count = _largest(spec, "accelerator.countPerWorker", accelerator.get("countPerWorker"))
    count *= _largest(spec, "workers", spec.job.get("workers"))
    if count * parallel > len(gpus):
        needs = f"{parallel}: each trial needs {counted(count, 'GPU')}, and this machine has {len(gpus)}"
        raise InvalidSpec("--parallel", needs, expected=f"at most {max(1, len(gpus) // count)}")
    return [{VISIBLE_GPUS: ",".join(gpus[at * count : (at + 1) * count])} for at in range(parallel)]


def _largest(spec: SweepSpec, path: str, written: object) -> int:
    """Return the largest number that the job or the search has at `path`."""
    values = [written]
    for parameter in spec.parameters:
        if parameter.path == path:
            values += [parameter.int_.high] if parameter.int_ else parameter.values or []
    return max((value for value in values if isinstance(value, int)), default=1)


@dataclass
class Driver:
    """One drive of a sweep, under the lock of its folder. `run` is for the main thread, which receives signals."""

    sweep: MPTrainingSweep
    status: SweepStatus
    folder: SweepFolder
    settings: TrialSettings
    display: SweepDisplay
    slots: list[Mapping[str, str]]
    _records: dict[str, JobRecord] = field(default_factory=dict)
    _runs: dict[str, TrialRun] = field(default_factory=dict)
    # Runs of deleted jobs, which are still saving.
    _leaving: list[TrialRun] = field(default_factory=list)
    _changed: threading.Event = field(default_factory=threading.Event)
    _stops: list[int] = field(default_factory=list)

    @property
    def view(self) -> SweepView:
        return SweepView(self.sweep, self.status, str(self.folder.path))

    def run(self) -> int:
        """Run the sweep to its end, and return the exit code for a shell: 0, 1 if it failed, 130 after Ctrl-C.

        75 is a fault of the machine, such as a full disk, after which the same command continues.
        """
        self._records = self.folder.jobs()
        wake_at: float | None = 0.0
        try:
            with Signals(self._stops):
                while True:
                    if self._reap() or (wake_at is not None and self.settings.clock() >= wake_at):
                        wake_at = self._replan()
                        if self._start_waiting():
                            wake_at = self._replan()
                    self.display.update(self.view, self._progress())
                    if self._stops or self._fault() is not None:
                        return self._stop()
                    if self.view.finished is not None and not self._runs and not self._leaving:
                        return 0 if self.view.succeeded else 1
                    self._changed.wait(TICK_SECONDS)
                    self._changed.clear()
        finally:
            self._end_runs(signal.SIGTERM)
            self.display.close()

    def _replan(self) -> float | None:
        """Apply plans until one changes nothing; return when to plan again."""
        while True:
            jobs = {name: self._observed(record) for name, record in self._records.items()}
            planned = plan(self.sweep, self.status, jobs, self.settings.clock())
            ended = newly_ended(self.view.trials, planned.status.trials or ())
            changed = planned.status != self.status
            if changed:
                self.folder.write(self.sweep, planned.status)
                self.status = planned.status
            for trial in ended:
                self.display.ended(self.view, trial)
            applied = [action for action in planned.actions if self._apply(action)]
            if not applied and not changed:
                return planned.wake_at

    def _observed(self, record: JobRecord) -> TrialJob:
        if record.end is None:
            runs = record.name in self._runs
            return TrialJob(record.name, "Running" if runs else "Pending")
        return TrialJob(
            record.name,
            record.end.state,
            message=record.end.message,
            metrics=record.end.metrics or {},
            completion=record.end.time,
        )

    def _apply(self, action: object) -> bool:
        """Apply an action; return whether it changed anything. Nothing suspends or deletes a sweep of this machine."""
        if isinstance(action, CreateJob) and action.name not in self._records:
            self._record(JobRecord(document=action.document, created=self.settings.clock()))
            return True
        if isinstance(action, DeleteJob) and action.name in self._records:
            self.folder.delete_job(action.name)
            del self._records[action.name]
            run = self._runs.pop(action.name, None)
            if run is not None:
                run.send(signal.SIGTERM)
                self._leaving.append(run)
            return True
        return False

    def _record(self, record: JobRecord) -> None:
        self.folder.write_job(record)
        self._records[record.name] = record

    def _start_waiting(self) -> bool:
        """Start the jobs that have not ended, as many as there are places; return whether any was started."""
        started = False
        for name, record in self._records.items():
            taken = [run.environment for run in (*self._runs.values(), *self._leaving)]
            free = [slot for slot in self.slots if slot not in taken or not slot]
            if record.end is None and name not in self._runs and len(taken) < len(self.slots) and free:
                self._runs[name] = TrialRun(record, self.settings, free[0], self._changed)
                self._runs[name].start()
                started = True
        return started

    def _reap(self) -> bool:
        """Record the ends of runs; return whether there were any."""
        over = [run for run in self._runs.values() if run.over and isinstance(run.outcome, JobEnd)]
        for run in over:
            self._record(run.record.model_copy(update={"end": run.outcome}))
            del self._runs[run.record.name]
        leaving = [run for run in self._leaving if not run.over]
        left = len(self._leaving) - len(leaving)
        self._leaving = leaving
        return bool(over or left)

    def _fault(self) -> str | None:
        """Return what keeps a run from ending here; raise what this program did wrong."""
        for run in self._runs.values():
            if isinstance(run.outcome, Exception):
                raise run.outcome
            if run.over and isinstance(run.outcome, Interrupted) and run.outcome.fault:
                return f"trial {_number(run.record)}: {run.outcome.fault}"
        return None

    def _stop(self) -> int:
        """Let the runs save and end; what they did stays, and the same command continues."""
        fault = self._fault()
        number = self._stops[0] if self._stops else signal.SIGTERM
        if fault is None:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            running = counted(len(self._runs), "running trial")
            self.display.say(f"{name}: {running} will save and stop; a second Ctrl-C stops at once")
        self._end_runs(number)
        # A trial may have ended meanwhile.
        self._reap()
        self.display.close()
        if fault is None:
            return 128 + number
        self.display.say(f"stopped by a fault of this machine: {fault}")
        return MACHINE_FAULT

    def _end_runs(self, number: int) -> None:
        """Send a signal to all runs and wait for their end; further signals of the user are passed to them."""
        runs = [run for run in (*self._runs.values(), *self._leaving) if not run.over]
        signals, passed = [number], len(self._stops)
        while any(not run.over for run in runs):
            for run in runs:
                for sent in signals:
                    run.send(sent)
            self._changed.wait(TICK_SECONDS)
            self._changed.clear()
            signals, passed = self._stops[passed:], len(self._stops)

    def _progress(self) -> dict[int, Progress | None]:
        return {_number(run.record): run.display.progress for run in self._runs.values()}


def _number(record: JobRecord) -> int:
    return int(record.document["metadata"]["labels"][TRIAL])


def final_lines(view: SweepView, folder: str) -> Iterable[str]:
    """Return the last lines of a sweep that has ended; `folder` as the user may type it."""
    ended, best = view.finished, best_text(view)
    yield f"{view.phase}: {counts_text(view)}" + (f"; {ended.message}" if ended is not None and ended.message else "")
    if best:
        yield f"  best    {best}"
    yield f"  folder  {folder}"
    if best:
        yield f"  next    mptj sweep compare {folder}   mptj sweep job {folder}"
