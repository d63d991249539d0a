"""Waiting for the end of a cluster job, shown on the same displays as a local run."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.follow import JobFollower, Line, NoAnswer
from mptraining.cluster.job_view import JobView, advice, no_operator_text, progress_event, progress_text, reason_text
from mptraining.display.summary import RunSummary, success_lines
from mptraining.display.text import Display, is_noise
from mptraining_api import events
from mptraining_api.events import Event, Notice
from mptraining_api.launch import MODEL_WAITS

# Log lines shown from before the call: a job may have run for days.
LINES_BEFORE = 1000
# Seconds in which a user may follow the last lines' advice.
_READING_SECONDS = 60


class StillRunning(ClusterProblem):
    """The job has not ended within the timeout; the exit code is that of timeout(1)."""

    exit_code = 124


def wait(
    server: ApiServer,
    name: str,
    uid: str,
    display: Display,
    *,
    clock: Callable[[], float],
    wall: Callable[[], float],
    timeout: float | None = None,
    model_waits: Callable[[], None] | None = None,
) -> JobView:
    """Show the job until it has ended; return its last view.

    `model_waits` is called when worker 0 keeps the model of a job without run folder. Raises StillRunning after
    `timeout` seconds, and ClusterProblem. KeyboardInterrupt is not caught, and does not affect the job.
    """
    shown = FilteredDisplay(display, wall)
    end = None if timeout is None else clock() + timeout
    last: JobView | None = None
    with JobFollower(server, name, uid, tail=LINES_BEFORE) as following:
        for update in following.updates():
            if isinstance(update, JobView):
                last = update
                shown.show_job(update)
            elif isinstance(update, Line):
                event = shown.line(update)
                if model_waits is not None and isinstance(event, Notice) and event.topic == MODEL_WAITS:
                    model_waits()
            elif isinstance(update, NoAnswer):
                display.say(f"warning: {update.problem} The request is retried.")
            elif last is not None:
                shown.show_no_update(last)
            if end is not None and clock() >= end and not (last and last.finished):
                phase = last.phase if last else "unknown"
                raise StillRunning(
                    name,
                    f"still {phase} after {timeout:g} s",
                    next_step=f"The job continues; wait again: {server.command('wait', name)}",
                )
    if last is None:
        raise StillRunning(name, "its status is unknown")
    display.close()
    for text in final_lines(last, shown.summary):
        display.say(text)
    return last


class FilteredDisplay:
    """Filter of the updates for a display: shows each phase, event and warning once."""

    def __init__(self, display: Display, wall: Callable[[], float]) -> None:
        self.summary = RunSummary()
        self._display = display
        self._wall = wall
        self._last_text = ""
        self._warned = False
        # The attempt whose log of worker 0 is read: its Progress events are newer and more detailed than the status.
        self._attempt_from_log = 0
        self._status_step: tuple[int, int] | None = None

    def show_job(self, seen: JobView) -> None:
        text = f"{seen.phase}: {reason_text(seen)}"
        if text != self._last_text and not seen.finished:
            self._last_text = text
            self._display.say(text)
        progress = seen.status.progress
        if progress is None or progress.step is None or progress.attempt == self._attempt_from_log:
            return
        position = (progress.attempt or 0, progress.step)
        if position != self._status_step:
            self._status_step = position
            self._display.event(0, progress_event(seen))

    def line(self, line: Line) -> Event | None:
        """Show the line; return its event if it is one."""
        event = events.parse(line.text)
        if event is None:
            if not is_noise("stderr", line.text):
                self._display.line(line.pod.index, "stdout", line.text)
            return None
        self.summary.add(line.pod.index, event)
        if line.pod.index == 0:
            self._attempt_from_log = line.pod.attempt
        self._display.event(line.pod.index, event)
        return event

    def show_no_update(self, seen: JobView) -> None:
        """Handle a period without updates: warn once if no operator has seen the job."""
        warning = no_operator_text(seen, self._wall())
        if warning and not self._warned:
            self._warned = True
            self._display.say(f"warning: {warning}")


def final_lines(seen: JobView, summary: RunSummary) -> list[str]:
    if seen.succeeded:
        finished = summary.finished.get(0)
        if finished is not None:
            ttl = (seen.spec.get("runPolicy") or {}).get("ttlSecondsAfterFinished")
            # A job that is deleted right after its end cannot be compared by its name.
            job = "" if ttl is not None and ttl < _READING_SECONDS else shlex.join([seen.name, *seen.flags])
            return list(success_lines(finished, seen.output, job=job, predicts=summary.predicts))
        return [f"Succeeded: {progress_text(seen)}" if progress_text(seen) else "Succeeded"]
    return [f"{seen.phase}: {reason_text(seen)}", *(f"  advice      {text}" for text in (advice(seen),) if text)]


def detached_text(server: ApiServer, name: str) -> str:
    """Return the message after Ctrl-C, with the commands to attach again and to cancel."""
    again, cancel = server.command("wait", name), server.command("cancel", name)
    return f"Detached; the job continues. Attach again: {again}   Cancel it: {cancel}"
