"""View of an MPTrainingJob as a value and as text for the user: pure functions of the object in the API server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mptraining.display.text import duration, number, rate
from mptraining_api import outcomes
from mptraining_api.outcomes import Outcome
from mptraining_api.spec import PAUSED, is_paused
from mptraining_api.status import Attempt, Condition, JobStatus, Phase, parse_time

# Next steps that a condition's message does not contain, by reason (of `mptraining_api.outcomes` and the operator's
# conditions).
_ADVICE: Mapping[str, str] = {
    "ProgramFailed": "the worker's output: mptj logs {name}; try the same on this machine: mptj run FILE",
    "InvalidSpec": "fix the job, then: mptj cancel {name} and submit it again",
    "InvalidData": "check paths and rights of spec.data; every record: mptj records verify URI",
    "InvalidProgram": "try it on this machine first: mptj run FILE",
    "ResumeRefused": "give another output.uri, or delete the run folder",
    "Diverged": "lower the learning rate, clip gradients (clipnorm), or train in float32",
    "OOMKilled": "raise podTemplate.resources.limits.memory, or lower batchSize or data.shuffle",
    "StorageLimit": "raise the limit that the reason above names, or write to a bucket or a claim with output.uri",
    "PendingTimeout": "fix what the reason above names, or raise runPolicy.pendingTimeoutSeconds, and submit it again",
    "NoProgress": "the workers' last output: mptj logs {name}; for slow steps raise runPolicy.progressDeadlineSeconds",
    "DeadlineExceeded": "raise runPolicy.activeDeadlineSeconds; with output.uri it resumes from its checkpoint",
    "Preempted": "with output.uri and checkpoint.everySteps less is lost each time; or provisioning: OnDemand",
    "NodeLost": "with output.uri and checkpoint.everySteps less is lost each time",
    "StorageUnavailable": "the bucket stopped answering: submit the job again; it resumes from its checkpoint",
    "StoppedByUser": "run it again: it resumes from its checkpoint",
    "OutsideLimits": "ask the cluster's administrator, or stay within what the message allows and submit it again",
    "Suspended": "to continue: mptj resume {name}",
}


@dataclass(frozen=True, slots=True)
class JobView:
    """A snapshot of a job. `document` is the complete object; `error` is why its status cannot be read."""

    name: str
    namespace: str
    document: Mapping[str, Any]
    status: JobStatus
    error: str | None = None

    @property
    def uid(self) -> str:
        return str(self.document["metadata"].get("uid", ""))

    @property
    def spec(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document.get("spec") or {}
        return found

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
        return condition(self.status, "Succeeded") is not None

    @property
    def ended_by(self) -> Condition | None:
        """Return the Succeeded or Failed condition; None before the end."""
        return condition(self.status, "Succeeded") or condition(self.status, "Failed")

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
        found = (self.spec.get("output") or {}).get("uri")
        return str(found) if found else None

    def __str__(self) -> str:
        return "\n".join(lines(self))


def view(document: Mapping[str, Any]) -> JobView:
    """Parse a job object of the API server. Unknown fields of a newer version's status are ignored."""
    metadata = document["metadata"]
    error = None
    try:
        status = JobStatus.read(json.dumps(document.get("status") or {}))
    except ValidationError as problem:
        status, error = JobStatus(), f"status cannot be read: {problem.errors()[0]['msg']}"
    return JobView(str(metadata["name"]), str(metadata.get("namespace", "default")), document, status, error)


def condition(status: JobStatus, type: str) -> Condition | None:
    """Return the condition of that type if its status is True."""
    return next((each for each in status.conditions or () if each.type == type and each.status == "True"), None)


def reason_text(seen: JobView) -> str:
    """Return reason and message of the current condition: Succeeded, Failed, Suspended, or else Running."""
    status = seen.status
    found = seen.ended_by or condition(status, "Suspended")
    found = found or next((each for each in status.conditions or () if each.type == "Running"), None)
    if found is None:
        return seen.error or "the operator has not processed the job yet"
    return f"{found.reason}: {found.message}" if found.message else found.reason


def no_operator_text(seen: JobView, now: float) -> str | None:
    """Return advice if no operator has seen the job for 30 seconds."""
    created = seen.document["metadata"].get("creationTimestamp")
    if seen.status.phase is not None or seen.paused or not created:
        return None
    waited = now - parse_time(str(created))
    if waited < 30:
        return None
    return (
        f"no operator has processed the job for {duration(waited)}; is the operator running? "
        "kubectl get deployments --namespace mptraining-system"
    )


def advice(seen: JobView) -> str | None:
    """Return the next step for a job that has failed or is suspended."""
    found = seen.ended_by or condition(seen.status, "Suspended")
    if found is None or seen.succeeded:
        return None
    text = _ADVICE.get(found.reason)
    return text.format(name=seen.name) if text else None


def progress_text(seen: JobView) -> str:
    """Return step, percent, metrics, speed and remaining time; empty before the first progress report."""
    progress = seen.status.progress
    if progress is None or progress.step is None:
        return ""
    of = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = [f"step {progress.step}{of}"]
    if progress.percent_complete is not None:
        parts[0] += f" ({progress.percent_complete}%)"
    parts += [f"{each.name} {_number(each.value)}" for each in progress.metrics or ()]
    if not seen.finished:
        if progress.examples_per_second is not None:
            parts.append(rate(progress.examples_per_second))
        if progress.estimated_remaining_seconds:
            parts.append(f"{duration(progress.estimated_remaining_seconds)} left")
    return "  ".join(parts)


def lines(seen: JobView, *, more: Sequence[str] = ()) -> list[str]:
    """Return the job as text: phase, reason, progress, resolved settings, attempts, advice. `more` is added advice."""
    status = seen.status
    rows = [("why", reason_text(seen)), ("progress", progress_text(seen))]
    if seen.paused:
        rows.append(("paused", f"the operator leaves it; to continue: kubectl annotate mptj {seen.name} {PAUSED}-"))
    fallback = condition(status, "FellBackToCPU")
    if fallback is not None:
        rows.append(("on the CPU", fallback.message))
    decided = [
        status.strategy or "",
        status.precision or "",
        _count(status.workers, "worker"),
        _count(status.replicas_in_sync, "replica"),
        f"global batch size {status.global_batch_size}" if status.global_batch_size else "",
    ]
    rows.append(("runs as", ", ".join(filter(None, decided))))
    rows += [("attempts" if not at else "", _attempt(each)) for at, each in enumerate(status.attempts or ())]
    rows.append(("run folder", seen.output or ""))
    rows += [("advice", each) for each in (advice(seen), *more) if each]
    return [
        f"{seen.name}: {seen.phase}{f', attempt {status.current_attempt}' if status.current_attempt else ''}",
        *(f"  {name:<10}  {text}" for name, text in rows if text),
    ]


def row(seen: JobView, now: float) -> tuple[str, ...]:
    """Return the job as a table row: NAME PHASE ACCELERATOR PROGRESS METRICS AGE."""
    accelerator = seen.spec.get("accelerator") or {}
    count = accelerator.get("topology") or accelerator.get("countPerNode") or 1
    progress = seen.status.progress
    percent = "" if progress is None or progress.percent_complete is None else f"{progress.percent_complete}%"
    metrics = "  ".join(f"{each.name} {_number(each.value)}" for each in (progress.metrics or () if progress else ()))
    created = seen.document["metadata"].get("creationTimestamp")
    age = duration(max(0.0, now - parse_time(str(created)))) if created else ""
    return (seen.name, seen.phase, f"{count} x {accelerator.get('type', '')}", percent, metrics, age)


HEADINGS = ("NAME", "PHASE", "ACCELERATOR", "PROGRESS", "METRICS", "AGE")


def _attempt(attempt: Attempt) -> str:
    return f"{attempt.number} {attempt.outcome or 'under way'}" + (f": {attempt.message}" if attempt.message else "")


def _count(value: int | None, noun: str) -> str:
    return "" if value is None else f"{value} {noun}{'s' if value != 1 else ''}"


def _number(text: str) -> str:
    try:
        return number(float(text))
    except ValueError:
        return text
