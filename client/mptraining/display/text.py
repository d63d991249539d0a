"""Text of a run's events and numbers by pure functions, and the plain display for pipes and logs.

`mptraining.display.terminal` and `mptraining.display.notebook` draw the same events.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TextIO

from mptraining_api.events import Event, Finished, Notice, Progress, Raised, Recovered, Saved, SearchSpace, Started
from mptraining_api.outputs.scalars import is_new_validation, of_validation
from mptraining_api.resolved_job import ResolvedJob

PLAIN_SECONDS = 10.0
BRIEF_SECONDS = 1.0
# Topics of warnings about a measurement of all workers, which only worker 0 shows.
_OF_ALL = ("InputBound",)
# The beginning of the notice that the Started event repeats.
_RESUMES = "resuming from the checkpoint"
# Log lines of TensorFlow's C++ runtime that no setting disables and that do not depend on the program.
NOISE = (
    "could not find cuda drivers",
    "oneDNN custom operations are on",
    "oneDNN supports DT_HALF only",
    "All log messages before absl::InitializeLog",
    "Using MirroredStrategy eagerly has significant overhead",
)
# Its errors where it finds no GPU driver, which a job for a CPU does not need. CUDA_VISIBLE_DEVICES=-1 and
# TF_CPP_MIN_LOG_LEVEL=2 are set before TensorFlow is imported: it initializes CUDA all the same, to list no device.
_NO_GPU = ("failed call to cuInit", "retrieving CUDA diagnostic information", "kernel driver does not appear")
# The most important choices; `mptj check` shows all.
_SHORT = (
    "spec.accelerator.type",
    "spec.strategy",
    "spec.precision.policy",
    "spec.keras",
    "spec.training.batchSize",
    "spec.training.learningRateScaling",
)


class Display(Protocol):
    def say(self, text: str) -> None:
        """Show a permanent line of mptraining itself."""

    def event(self, worker: int, event: Event) -> None: ...

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Show a line that the user's program printed."""

    def close(self) -> None:
        """Remove the progress bar; `say` may still be called."""


def show_waiting(display: Display, text: str) -> None:
    """Show what the run is waiting for: as a moving line where the display has one, otherwise as a line."""
    getattr(display, "waiting", display.say)(text)


def wrapped(text: str, stream: TextIO) -> str:
    """Return the text broken at words to the width of `stream`, if that is a terminal."""
    if not stream.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, 20)
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines()
    )


def duration(seconds: float) -> str:
    """Format a duration: 8 ms, 0.8 s, 42 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def short_time(seconds: float) -> str:
    """Format a step time with three significant digits: 820 µs, 1.25 ms, 3.2 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def size(count: float) -> str:
    """Format a number of bytes with powers of 1000: 512 B, 1.5 MB, 12.3 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def counted(count: int | None, noun: str) -> str:
    """Return a count with its noun: 1 worker, 2,000 workers; empty if it is unknown."""
    return "" if count is None else f"{count:,} {noun}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """Format a number with four significant digits: 0.8713, 12.34, 1.2e-05, NaN."""
    return "NaN" if math.isnan(value) else f"{value:.4g}"


def rate(value: float) -> str:
    return f"{value:,.0f} examples/s" if value >= 10 else f"{value:.2g} examples/s"


def metrics(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {number(value)}" for name, value in values.items())


def ends_validation(event: Progress, before: Progress | None) -> bool:
    """Return whether the event is the first one after a validation; `before` is the previous one."""
    return bool(of_validation(event.metrics)) and is_new_validation(event.metrics, before.metrics if before else {})


def is_indexing(event: Event) -> bool:
    """Return whether the event reports the progress of indexing; such a line is replaced by the next one."""
    return isinstance(event, Notice) and event.topic == "Indexing"


def speed_text(event: Progress, *, with_time_left: bool = True) -> str:
    """Return speed, loss scale, skipped steps and input statistics of a Progress event.

    Skipped steps and retries count from the start of the process.
    """
    parts = []
    if event.examples_per_second is not None:
        parts.append(rate(event.examples_per_second))
    if event.step_seconds is not None:
        parts.append(f"{short_time(event.step_seconds)}/step")
    if event.loss_scale is not None and event.loss_scale != 1:
        parts.append(f"loss scale {event.loss_scale:.0f}")
    if event.skipped_steps:
        parts.append(f"{event.skipped_steps} skipped")
    if event.input_bytes_per_second:
        parts.append(f"reads {size(event.input_bytes_per_second)}/s")
    if event.input_retries:
        parts.append(f"{event.input_retries:,} {'retry' if event.input_retries == 1 else 'retries'}")
    if event.input_bound_percent is not None and event.input_bound_percent >= 20:
        parts.append(f"waits for data {event.input_bound_percent:.0f}%")
    if with_time_left and (left := time_left(event)):
        parts.append(left)
    return "  ".join(parts)


def time_left(event: Progress) -> str:
    """Return the estimated time to the end; empty if it is unknown or less than a second."""
    left = event.estimated_remaining_seconds
    return f"{duration(left)} left" if left is not None and left >= 1 else ""


def position_text(event: Progress) -> str:
    of = f"/{event.total_steps}" if event.total_steps is not None else ""
    if event.trial is None:
        # A prediction has no epochs.
        return f"step {event.step}{of}" + (f"  epoch {event.epoch}" if event.epoch else "")
    trials = f" of {event.trials}" if event.trials is not None else ""
    return f"trial {event.trial}{trials}  step {event.step}{of}  epoch {event.epoch}"


def event_lines(event: Event) -> list[str]:
    """Return the event as plain lines.

    Finished has none, because `mptraining.local.outcome.final_text` and `mptraining.cluster.wait.final_lines` report
    it, and SearchSpace and Raised have none, because those who asked for them report them.
    """
    match event:
        case Started():
            replicas = counted(event.replicas_in_sync, "replica")
            on = f"{event.workers} workers, {replicas}" if event.workers > 1 else replicas
            parts = [
                on if event.strategy == "None" else f"{event.strategy} on {on}",
                event.precision,
                f"{event.keras}, TensorFlow {event.tensorflow}",
            ]
            if event.parameters is not None:
                parts.append(f"{event.parameters:,} parameters")
            if event.train_examples is not None:
                held = f" + {event.validation_examples:,}" if event.validation_examples else ""
                parts.append(f"{event.train_examples:,}{held} {'records' if event.purpose else 'examples'}")
            if event.steps_per_execution is not None:
                parts.append(f"{counted(event.steps_per_execution, 'step')} per execution")
            if event.cache is not None and event.cache != "None":
                parts.append(f"cache {event.cache}")
            starts = "prediction starts" if event.purpose == "Prediction" else "training starts"
            begin = f"resumes from step {event.first_step}" if event.first_step else starts
            return [f"{begin}: {'; '.join(parts)}"]
        case Progress():
            parts = [position_text(event), metrics(event.metrics), speed_text(event)]
            return ["  ".join(part for part in parts if part)]
        case Notice():
            kind = "warning: " if event.level == "Warning" else "note: "
            return [event.message if is_indexing(event) else kind + event.message]
        case Saved():
            return [f"saved step {event.step} ({size(event.bytes)} in {duration(event.seconds)})"]
        case Recovered():
            back = f"recovered: back from step {event.from_step} to {event.to_step} under {event.precision}"
            return [f"{back}: {event.message}"]
        case SearchSpace() | Raised() | Finished():
            return []


def header(job: ResolvedJob, *, folder: str) -> list[str]:
    """Return the first lines of a run: program, accelerator, run folder, and the main choices with their reasons.

    `folder` is the run folder as the user may type it.
    """
    chosen = [choice for choice in job.choices if choice.field in _SHORT]
    rows = [("run folder", folder, "")]
    rows += [(choice.field.removeprefix("spec."), choice.value, choice.because) for choice in chosen]
    wide = max(len(field) for field, _, _ in rows), min(28, max(len(value) for _, value, _ in rows))
    workers = f" on {job.workers} workers" if job.workers > 1 else ""
    return [
        f"{job.name}: {program_text(job)} on {job.accelerator.title}{workers}",
        *(f"  {field:<{wide[0]}}  {value:<{wide[1]}}  {because}".rstrip() for field, value, because in rows),
    ]


def program_text(job: ResolvedJob) -> str:
    program = job.program
    if program.application is not None:
        return program.application.name
    if program.function is not None:
        return program.function.entry_point
    if program.prediction is not None:
        return f"prediction of {program.prediction.model}"
    if program.ensemble is not None:
        return f"ensemble of {len(program.ensemble.members)} models"
    return program.script.path if program.script is not None else "nothing"


def is_noise(stream: Literal["stdout", "stderr"], text: str, *, needs_gpu: bool = True) -> bool:
    """Return whether the line is in NOISE, or about a GPU that the job does not need, and therefore hidden.

    --debug shows it.
    """
    hidden = NOISE if needs_gpu else (*NOISE, *_NO_GPU)
    return stream == "stderr" and any(noise.lower() in text.lower() for noise in hidden)


def with_worker_prefix(worker: int, text: str) -> str:
    """Return the line with the worker's index in front, except for worker 0."""
    return f"[worker {worker}] {text}" if worker else text


def is_shown(worker: int, event: Event) -> bool:
    """Return whether to show the event: worker 0 shows all, another worker only warnings that may be its own.

    The notice that a run resumes is not shown: the Started event has the same step.
    """
    if worker == 0:
        return not (isinstance(event, Notice) and event.topic == "Resumed" and event.message.startswith(_RESUMES))
    return isinstance(event, Notice) and event.level == "Warning" and event.topic not in _OF_ALL


class PlainDisplay:
    """Display as plain lines for a log or a pipe.

    Progress and saves appear at most every `seconds`; progress with validation metrics or of a new epoch at most every
    BRIEF_SECONDS; the last step always.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, seconds: float = PLAIN_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._shown: dict[type[Event], float] = {}
        self._before: Progress | None = None

    def say(self, text: str) -> None:
        print(text, flush=True)

    def event(self, worker: int, event: Event) -> None:
        if is_shown(worker, event) and self._is_due(event):
            for text in event_lines(event):
                self.say(with_worker_prefix(worker, text))
            self._before = event if isinstance(event, Progress) else self._before

    def line(self, worker: int, stream: Literal["stdout", "stderr"], text: str) -> None:
        print(with_worker_prefix(worker, text), file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    def close(self) -> None: ...

    def _is_due(self, event: Event) -> bool:
        if not isinstance(event, Progress | Saved):
            return True
        wait, due = self._seconds, False
        if isinstance(event, Progress):
            due = event.step == event.total_steps
            if self._before is None or event.epoch != self._before.epoch or ends_validation(event, self._before):
                wait = BRIEF_SECONDS
        now = self._clock()
        if not due and now - self._shown.get(type(event), -math.inf) < wait:
            return False
        self._shown[type(event)] = now
        return True


def readable(name: str) -> str:
    """Return the name of a metric or gauge for people: val_accuracy is validation accuracy, cpuPercent CPU percent."""
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", re.sub("^val_", "validation ", name).replace("_", " ")).lower()
    return re.sub(r"\b(gpu|cpu|ram)\b", lambda match: match[0].upper(), words)
