"""How a local run ended, in words: pure functions from what was seen to the last lines a person reads."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from mptraining.display.text import duration, metrics
from mptraining.local.verdict import End, GangEnd, Verdict
from mptraining_api import outcomes
from mptraining_api.events import Event, Finished, Saved, Started
from mptraining_api.outcomes import Budget


@dataclass
class Story:
    """What the workers' events amount to so far."""

    saved: int | None = None
    finished: dict[int, Finished] = field(default_factory=dict)

    def add(self, worker: int, event: Event) -> None:
        if isinstance(event, Finished):
            self.finished[worker] = event
        elif isinstance(event, Saved):
            self.saved = event.step
        elif isinstance(event, Started) and worker == 0 and event.first_step:
            self.saved = event.first_step


@dataclass(frozen=True, slots=True)
class Words:
    """`said` for standard output, `error` (one line) for standard error."""

    said: tuple[str, ...]
    error: str | None = None


def ending(story: Story, end: GangEnd, verdict: Verdict, *, command: str, folder: str) -> Words:
    """`command` is what starts the same run again; `folder` is the run folder as the user may type it."""
    if verdict.exit_code == 0:
        return Words(success(story.finished.get(0), folder))
    where = f"`{command}` goes on from step {story.saved}" if story.saved else f"`{command}` starts anew"
    if verdict.decided_by is None:
        killed = [each for each in end.ends if each.code == -signal.SIGKILL and each.told]
        late = f"; {_name(killed[0], many=len(end.ends) > 1)} did not stop in time and was killed" if killed else ""
        # The one step that matters is the saved one, which may be behind or ahead of the last that was shown.
        return Words((f"Stopped{late}. {where}.",))
    outcome, message = _cause(verdict.decided_by, story.finished, many=len(end.ends) > 1)
    never = outcome.budget is Budget.NEVER_RETRY
    return Words((), f"{outcome.reason}: {_sentence(message)}" + ("" if never else f" {where}."))


def success(finished: Finished | None, folder: str | None) -> tuple[str, ...]:
    """The lines after a success; `folder` is None for a job of a cluster that has no run folder."""
    if finished is None:
        return ("Ended without a word about the result.",)
    first = "Succeeded"
    if finished.step is not None:
        first += f": {finished.step} {'step' if finished.step == 1 else 'steps'}"
    if finished.seconds is not None:
        first += f" in {duration(finished.seconds)}"
    rows = [("metrics", metrics(finished.metrics)), ("numbers", _numbers(finished)), ("data", _data(finished))]
    if folder is None:
        return (first, *(f"  {name:<10}  {value}" for name, value in rows if value))
    rows.append(("run folder", folder))
    if finished.model is not None:
        below = "://" not in finished.model and not finished.model.startswith("/")
        rows.append(("model", f"{folder.rstrip('/')}/{finished.model}" if below else finished.model))
    rows.append(("next", f"mptj compare {shlex.quote(folder)}"))
    return (first, *(f"  {name:<10}  {value}" for name, value in rows if value))


def _numbers(finished: Finished) -> str:
    """Nothing when they stayed finite."""
    times = finished.recoveries or 0
    return f"went back {times} {'time' if times == 1 else 'times'}, ended under {finished.precision}" if times else ""


def _data(finished: Finished) -> str:
    """What the records cost the training, as far as somebody measured it."""
    parts = []
    if finished.first_record_seconds is not None:
        parts.append(f"first batch after {duration(finished.first_record_seconds)}")
    if finished.input_bound_percent is not None:
        parts.append(f"waited for data {finished.input_bound_percent:.0f}% of the time")
    return ", ".join(parts)


def _cause(end: End, finished: Mapping[int, Finished], *, many: bool) -> tuple[outcomes.Outcome, str]:
    """The outcome that an end stands for, and what the worker said of it or what its exit code says."""
    name, told = _name(end, many=many), finished.get(end.worker)
    if told is not None and end.code == told.exit_code:
        return outcomes.by_reason(told.reason), f"{name}: {told.message}" if many else told.message
    if end.code == -signal.SIGKILL:
        return outcomes.by_exit_code(end.code), f"{name} was killed (SIGKILL), perhaps because memory ran out"
    if end.code < 0:
        return outcomes.by_exit_code(end.code), f"{name} was ended by {_signal_name(-end.code)}"
    outcome = outcomes.by_exit_code(end.code)
    return outcome, f"{name} left with exit code {end.code} ({outcome.meaning}); the lines above may say why"


def _name(end: End, *, many: bool) -> str:
    return f"worker {end.worker}" if many else "the trainer"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."
