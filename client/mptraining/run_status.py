"""Status of a run folder as text, in the form of a cluster job's status (`mptraining.cluster.job_view`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptraining.display.text import duration, metrics

if TYPE_CHECKING:
    from mptraining.runs import Run


def phase(run: Run) -> str:
    """Return Succeeded or Failed as a cluster does; Unfinished if the run has not ended, or ended without a report."""
    if not run.finished:
        return "Unfinished"
    return "Succeeded" if run.succeeded else "Failed"


def one_line(run: Run) -> str:
    """Return name, folder, outcome, step and metrics."""
    where = "" if run.folder == run.name else f" in {run.folder}"
    parts = [f"{run.name}{where}: {run.reason or phase(run)}", _step(run), metrics(run.metrics)]
    return "  ".join(part for part in parts if part)


def lines(run: Run) -> list[str]:
    """Return the run as text: phase, reason, progress, settings, run folder, and the gaps of the folder."""
    known, ended = run.result or run.history.started, run.result or run.history.finished
    count = run.result.attempt if run.result else run.history.attempts
    reason = run.reason or "no worker has reported an end"
    decided = [
        known.strategy if known else run.job.strategy if run.job else "",
        run.precision or "",
        _count(known.workers if known else run.job.processes if run.job else None, "worker"),
        _count(known.replicas_in_sync if known else run.job.replicas if run.job else None, "replica"),
        f"global batch size {known.global_batch_size}" if known and known.global_batch_size else "",
    ]
    rows = [
        ("why", f"{reason}: {run.message}" if run.message else reason),
        *(("warning", text) for text in (ended.warnings if ended else None) or ()),
        ("progress", "  ".join(part for part in (_step(run), metrics(run.metrics)) if part)),
        ("runs as", ", ".join(filter(None, decided))),
        ("time", duration(run.seconds) if run.seconds else ""),
        ("run folder", run.folder if run.folder != run.name else ""),
        *(("gap", each) for each in run.gaps),
    ]
    return [
        f"{run.name}: {phase(run)}{f', attempt {count}' if count else ''}",
        *(f"  {name:<10}  {text}" for name, text in rows if text),
    ]


def _step(run: Run) -> str:
    """Return the last step, of how many, and the percentage; empty before the first."""
    progress = run.history.progress
    points = run.history.points
    step = run.result.step if run.result else points[-1].step if points else None
    if step is None:
        return ""
    total = progress.total_steps if progress else None
    return f"step {step}/{total} ({100 * step // total}%)" if total else f"step {step}"


def _count(value: int | None, noun: str) -> str:
    return "" if value is None else f"{value} {noun}{'s' if value != 1 else ''}"
