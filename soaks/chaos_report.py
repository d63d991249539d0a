"""What one run of chaos did and found, as a table for docs/reliability.md."""

from __future__ import annotations

from collections import Counter

from soaks.chaos_record import JobSeen
from soaks.chaos_run import Ran
from soaks.chaos_schedule import Kind

BEGIN = "<!-- chaos on {}, made by `make soak` -->"
END = "<!-- chaos on {} until here -->"


def table(ran: Ran, *, seed: int, where: str) -> str:
    """Faults by kind, then what the jobs went through and how they ended, then what was wrong."""
    last = {
        change.seen.name: change.seen
        for step in ran.evidence.steps
        for change in step.changes
        if isinstance(change.seen, JobSeen) and not change.gone
    }
    judged = {
        (each.name, number): outcome
        for step in ran.evidence.steps
        for change in step.changes
        if isinstance(each := change.seen, JobSeen)
        for number, outcome in each.attempts
        if outcome
    }
    done = Counter(each.kind for each in ran.strokes)
    phases = Counter(job.phase for job in last.values())
    reasons = Counter(judged.values())
    skewed = sum(bool(each) for each in ran.offsets)
    same = sum(found == undisturbed != "" for found, undisturbed in ran.evidence.digests.values())
    lines = [
        f"Seed {seed}, {where}, {ran.seconds:.0f} s.",
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {kind} | {done[kind]} |" for kind in Kind if done[kind]),
        f"| a replica's clock a minute off | {skewed} of {len(ran.offsets)} that were started |",
        "",
        "| outcome | |",
        "|---|---|",
        f"| jobs | {len(last)}: {_listed(phases)} |",
        f"| attempts | {sum(job.attempt for job in last.values())}: {_listed(reasons)} |",
        f"| jobs that really trained, with the weights of an undisturbed run | {same} of {len(ran.evidence.trained)} |",
        f"| restarts counted by the operators' metrics | {ran.evidence.counted} |",
        f"| complaints of the verdict | {len(ran.complaints)} |",
        *(f"| | {each} |" for each in ran.complaints),
    ]
    return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
