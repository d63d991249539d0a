"""View of an MPTrainingJob as a value and as text for the user: pure functions of the object in the API server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mptraining.display.text import counted, duration, number, rate
from mptraining_api import events, outcomes
from mptraining_api.events import Event, Finished
from mptraining_api.outcomes import Outcome
from mptraining_api.spec import PAUSED, is_paused, other_controller
from mptraining_api.status import Attempt, Condition, JobStatus, Phase, parse_time

if TYPE_CHECKING:
    from mptraining.display.curves import Panel

# Next steps that a condition's message does not contain, by reason (of `mptraining_api.outcomes` and the operator's
# conditions).
_ADVICE: Mapping[str, str] = {
    "ProgramFailed": "the worker's output: mptj logs {name}; try the same on this machine: mptj run FILE",
    "InvalidSpec": "fix the job, then: mptj cancel {name} and submit it again",
    "InvalidData": "check paths and rights of spec.data; every record: mptj records verify URI",
    "InvalidProgram": "try it on this machine first: mptj run FILE",
    "ResumeRefused": "give another output.uri, or delete the run folder",
    "Diverged": "lower the learning rate, clip gradients (clipnorm), or train in float32",
    "OOMKilled": "raise podTemplate.resources.limits.memory, lower batchSize or data.shuffle, or set "
    "data.cache to None",
    "StorageLimit": "raise the limit that the reason above names, or write to a bucket or a claim with output.uri",
    "StorageFull": "enlarge the volume that the reason above names, write to a bucket, or keep fewer checkpoints "
    "(checkpoint.maxToKeep)",
    "PendingTimeout": "fix what the reason above names, or raise runPolicy.pendingTimeoutSeconds, then: mptj cancel "
    "{name} and submit it again",
    "NoProgress": "the workers' last output: mptj logs {name}; for slow steps raise runPolicy.progressDeadlineSeconds",
    "DeadlineExceeded": "raise runPolicy.activeDeadlineSeconds; with output.uri it resumes from its checkpoint",
    "Preempted": "with output.uri and checkpoint.everySteps less is lost each time; or provisioning: OnDemand",
    "NodeLost": "with output.uri and checkpoint.everySteps less is lost each time",
    "StorageUnavailable": "the bucket stopped answering: submit the job again; it resumes from its checkpoint",
    "StoppedByUser": "run it again: it resumes from its checkpoint",
    "OutsideLimits": "ask the cluster's administrator, or stay within what the message allows and submit it again",
    "NoCapacity": "the next attempt tries the next machine of accelerator.alternatives, or of the runtime",
    "GangReleased": "the next attempt starts by itself when other jobs have ended",
    "Resized": "the next attempt starts by itself with another number of workers",
    "Suspended": "to continue: mptj resume {name}",
    "QueuePreempted": "it resumes by itself when its queue admits it again; kubectl get workloads",
}


@dataclass(frozen=True, slots=True, repr=False)
class JobView:
    """A snapshot of a job. `document` is the complete object; `error` is why its status cannot be read."""

    name: str
    namespace: str
    document: Mapping[str, Any]
    status: JobStatus
    error: str | None = None
    # Those of `mptj` that select its cluster and namespace, for commands in advice.
    flags: tuple[str, ...] = ()

    @property
    def uid(self) -> str:
        return str(self.document["metadata"].get("uid", ""))

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.document.get("spec") or {}
        return spec

    @property
    def paused(self) -> bool:
        """Return whether an annotation tells the operator to leave the job alone."""
        return is_paused(self.document["metadata"].get("annotations"))

    @property
    def phase(self) -> str:
        """Return the phase; Pending also before the operator has seen the job."""
        return str(self.status.phase or Phase.PENDING)

    @property
    def finished(self) -> bool:
        return condition(self.status, "Finished") is not None

    @property
    def succeeded(self) -> bool:
        return condition(self.status, "Complete") is not None

    @property
    def ended_by(self) -> Condition | None:
        """Return the Complete or Failed condition; None before the end."""
        return condition(self.status, "Complete") or condition(self.status, "Failed")

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome, which has an exit code; None before the end."""
        ended = self.ended_by
        if ended is None:
            return None
        return outcomes.SUCCEEDED if self.succeeded else outcomes.by_reason(ended.reason)

    @property
    def exit_code(self) -> int | None:
        """Return 0, or the exit code of the outcome (at least 1 for a failure); None before the end."""
        outcome = self.outcome
        if outcome is None:
            return None
        return outcome.exit_code if self.succeeded else outcome.exit_code or 1

    @property
    def output(self) -> str | None:
        """Return the run folder in the job's spec, if there is one."""
        uri = (self.spec.get("output") or {}).get("uri")
        return str(uri) if uri else None

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def __repr__(self) -> str:
        return f"<JobView {self.namespace}/{self.name}: {self.phase}  {progress_text(self)}>".replace("  >", ">")

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, panels: Sequence[Panel] = ()) -> str:
        """Return the HTML for a notebook's cell, with a bar of the progress and these charts."""
        from mptraining.display.html import card
        from mptraining.display.notebook import bar

        title, *rest = lines(self)
        progress = self.status.progress
        known = progress is not None and progress.step is not None and not self.finished
        return card(title, lines=rest, table=bar(progress_event(self)) if known else "", panels=panels)


def view(document: Mapping[str, Any], flags: Sequence[str] = ()) -> JobView:
    """Parse a job object of the API server. Unknown fields of a newer version's status are ignored.

    `flags` are those of `mptj` that select its cluster and namespace.
    """
    metadata = document["metadata"]
    error = None
    try:
        status = JobStatus.read(json.dumps(document.get("status") or {}))
    except ValidationError as problem:
        status, error = JobStatus(), f"status cannot be read: {problem.errors()[0]['msg']}"
    namespace = str(metadata.get("namespace", "default"))
    return JobView(str(metadata["name"]), namespace, document, status, error, tuple(flags))


def condition(status: JobStatus, kind: str) -> Condition | None:
    """Return the condition of that type if its status is True."""
    conditions = (entry for entry in status.conditions or () if entry.status == "True")
    return next((entry for entry in conditions if entry.type == kind), None)


def reason_text(seen: JobView) -> str:
    """Return reason and message of the current condition: Complete, Failed, Suspended, or else Running."""
    status = seen.status
    current = seen.ended_by or condition(status, "Suspended")
    current = current or next((entry for entry in status.conditions or () if entry.type == "Running"), None)
    if current is None:
        other = other_controller(seen.document.get("spec", {}).get("managedBy"))
        return seen.error or other or "the operator has not processed the job yet"
    return f"{current.reason}: {current.message}" if current.message else current.reason


def no_operator_text(seen: JobView, now: float) -> str | None:
    """Return advice if no operator has seen the job for 30 seconds, or if another controller has it."""
    created = seen.document["metadata"].get("creationTimestamp")
    if seen.status.phase is not None or seen.paused or not created:
        return None
    waited = now - parse_time(str(created))
    managed_by = seen.document.get("spec", {}).get("managedBy")
    if (other := other_controller(managed_by)) is not None:
        step = "The field cannot change: delete the job, and create it with another value or none"
        end = "" if other.endswith("?") else "."
        return f"spec.managedBy: {managed_by!r}: {other}{end} {step}"
    if waited < 30:
        return None
    return (
        f"no operator has processed the job for {duration(waited)}: does it run, and does it serve the namespace "
        f"{seen.namespace!r}? kubectl get deployments --namespace mptraining-system shows the first, the setting "
        "`namespaces` in its ConfigMap the second (empty: all)"
    )


def advice(seen: JobView) -> str | None:
    """Return the next step for a job that has failed or is suspended."""
    current = seen.ended_by or condition(seen.status, "Suspended")
    if current is None or seen.succeeded:
        return None
    text = _ADVICE.get(current.reason)
    return text.format(name=shlex.join([seen.name, *seen.flags])) if text else None


def progress_text(seen: JobView) -> str:
    """Return step, percent, metrics, speed and remaining time; empty before the first progress report."""
    progress = seen.status.progress
    if progress is None or progress.step is None:
        return ""
    of = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = [f"step {progress.step}{of}"]
    if progress.percent_complete is not None:
        parts[0] += f" ({progress.percent_complete}%)"
    parts += [f"{metric.name} {_number(metric.value)}" for metric in progress.metrics or ()]
    if not seen.finished:
        if progress.examples_per_second is not None:
            parts.append(rate(progress.examples_per_second))
        if progress.estimated_remaining_seconds:
            parts.append(f"{duration(progress.estimated_remaining_seconds)} left")
    return "  ".join(parts)


def progress_event(seen: JobView) -> events.Progress:
    """Return the progress in the job's status as an event, for users without permission to read logs."""
    progress = seen.status.progress
    assert progress is not None
    return events.Progress(
        time=parse_time(progress.update_time) if progress.update_time else 0.0,
        attempt=progress.attempt or 0,
        incarnation="",
        worker=0,
        step=progress.step or 0,
        total_steps=progress.total_steps,
        epoch=progress.epoch or 1,
        trial=progress.trial,
        trials=progress.trials,
        metrics={
            metric.name: value for metric in progress.metrics or () if (value := _value(metric.value)) is not None
        },
        examples_per_second=progress.examples_per_second,
        estimated_remaining_seconds=progress.estimated_remaining_seconds,
        input_bound_percent=progress.input_bound_percent,
        loss_scale=progress.loss_scale,
        precision=progress.precision,
        recoveries=progress.recoveries,
    )


def with_status(attempts: Sequence[Sequence[Event]], seen: JobView) -> list[list[Event]]:
    """Return the chief's events of the attempts, with what the job's status knows beyond them.

    The log of a pod may have no line of the last steps, and none is left of a deleted pod: then the status has the last
    progress, and its conditions have the end.
    """
    known = [list(attempt) for attempt in attempts]
    progress = seen.status.progress
    if progress is not None and progress.step is not None:
        latest = progress_event(seen)
        last = known[-1] if known and known[-1][0].attempt >= latest.attempt else []
        if not last:
            known.append(last)
        newer = all(latest.step > event.step for event in last if isinstance(event, events.Progress))
        if newer and (not last or last[0].attempt == latest.attempt):
            # The end stays the last event.
            ended = [event for event in last if isinstance(event, Finished)]
            last[:] = [*(event for event in last if not isinstance(event, Finished)), latest, *ended]
    ended_by, outcome = seen.ended_by, seen.outcome
    if ended_by is not None and outcome is not None and not (known and isinstance(known[-1][-1], Finished)):
        before = known[-1][-1] if known else None
        finished = Finished(
            time=max(before.time if before else 0.0, parse_time(ended_by.last_transition_time)),
            attempt=before.attempt if before else seen.status.current_attempt or 0,
            incarnation="",
            worker=0,
            reason=outcome.reason,
            exit_code=seen.exit_code or 0,
            message="" if seen.succeeded else ended_by.message,
        )
        known[-1:] = [[*(known[-1] if known else []), finished]]
    return known


def lines(seen: JobView, *, more: Sequence[str] = ()) -> list[str]:
    """Return the job as text: phase, reason, progress, resolved settings, attempts, advice. `more` is added advice."""
    status = seen.status
    rows = [("why", reason_text(seen)), ("progress", progress_text(seen))]
    if seen.paused:
        rows.append(
            (
                "paused",
                f"the operator leaves it; to continue: kubectl annotate mptj {seen.name} -n {seen.namespace} {PAUSED}-",
            )
        )
    absent = absent_accelerator(seen)
    if absent:
        rows.append(("on the CPU", f"{absent} is absent, and the operator's setting cpuFallback is on"))
    resolved = {choice.decision: choice.value for choice in status.resolved or ()}
    decided = [
        resolved.get("machine", "") if len(_machines(seen)) > 1 else "",
        resolved.get("strategy", "").replace("None", ""),
        resolved.get("precision", ""),
        counted(status.workers, "worker"),
        counted(status.replicas_in_sync, "replica"),
        f"global batch size {resolved['batchSize']}" if "batchSize" in resolved else "",
    ]
    rows.append(("runs as", ", ".join(filter(None, decided))))
    reasons = [f"{choice.decision} {choice.value}: {choice.reason}" for choice in status.resolved or ()]
    rows += [("because" if not at else "", text) for at, text in enumerate(reasons)]
    attempts = [_attempt(attempt, _machines(seen)) for attempt in status.attempts or ()]
    rows += [("attempts" if not at else "", text) for at, text in enumerate(attempts)]
    rows.append(("run folder", seen.output or ""))
    rows += [("advice", text) for text in (advice(seen), *more) if text]
    return [
        f"{seen.name}: {seen.phase}{f', attempt {status.current_attempt}' if status.current_attempt else ''}",
        *(f"  {name:<10}  {text}" for name, text in rows if text),
    ]


def row(seen: JobView, now: float) -> tuple[str, ...]:
    """Return the job as a table row, under `HEADINGS`."""
    accelerator = current_machine(seen)
    count = accelerator.get("topology") or accelerator.get("countPerWorker") or 1
    progress = seen.status.progress
    percent = "" if progress is None or progress.percent_complete is None else f"{progress.percent_complete}%"
    reported = (progress.metrics if progress else None) or ()
    metrics = "  ".join(f"{metric.name} {_number(metric.value)}" for metric in reported)
    name = f"{count} x {accelerator.get('type', '')}"
    workers = str(seen.status.workers or "")
    return (seen.name, seen.phase, name, workers, percent, metrics, age(seen.document["metadata"], now))


def current_machine(seen: JobView) -> Mapping[str, Any]:
    """Return the machine of the last attempt, as the spec has it."""
    attempts = seen.status.attempts
    return _machine_of(attempts[-1] if attempts else None, _machines(seen))


def _machine_of(attempt: Attempt | None, machines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    used = (attempt and attempt.machine) or 0
    return machines[used if used < len(machines) else 0]


def absent_accelerator(seen: JobView) -> str:
    """Return the accelerator that the cluster lacks, of a job that trains on CPUs in its place; empty for others."""
    first: Mapping[str, Any] = seen.spec.get("accelerator") or {}
    machines = [first, *(first.get("alternatives") or ())]
    used = _machine_of(seen.status.attempts[-1] if seen.status.attempts else None, machines)
    return "" if seen.status.machine_type != "cpu" or used.get("type") == "cpu" else str(first.get("type"))


def _machines(seen: JobView) -> Sequence[Mapping[str, Any]]:
    """Return the first choice and the alternatives, which a job that fell back to the CPU does not try."""
    first: Mapping[str, Any] = seen.spec.get("accelerator") or {}
    return [first, *(() if absent_accelerator(seen) else first.get("alternatives") or ())]


def by_creation(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key that sorts objects by their time of creation, and by name."""
    return str(document["metadata"].get("creationTimestamp")), str(document["metadata"]["name"])


def age(metadata: Mapping[str, Any], now: float) -> str:
    """Return the time since an object was created; empty if it is not in a cluster."""
    created = metadata.get("creationTimestamp")
    return duration(max(0.0, now - parse_time(str(created)))) if created else ""


HEADINGS = ("NAME", "PHASE", "ACCELERATOR", "WORKERS", "PROGRESS", "METRICS", "AGE")


def _attempt(attempt: Attempt, machines: Sequence[Mapping[str, Any]]) -> str:
    known = [f"on {_machine_of(attempt, machines).get('type')}"] if len(machines) > 1 else []
    if attempt.workers is not None:
        known.append(f"with {counted(attempt.workers, 'worker')}")
    ran = f" {', '.join(known)}:" if known else ""
    message = f": {attempt.message}" if attempt.message else ""
    return f"{attempt.number}{ran} {attempt.outcome or 'under way'}{message}"


def _number(text: str) -> str:
    value = _value(text)
    return text if value is None else number(value)


def _value(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
