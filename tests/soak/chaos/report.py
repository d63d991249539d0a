"""The faults and the findings of a chaos run, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.soak.chaos.run import Ran
from tests.soak.chaos.schedule import Kind
from tests.soak.chaos.verdict import doubled, last_seen, outcomes_seen


def table(rounds: Sequence[Ran], *, seed: int) -> str:
    """Return faults by kind, then the jobs' outcomes, then the complaints; all rounds together."""
    done = Counter(fault.kind for ran in rounds for fault in ran.faults)
    jobs = [job for ran in rounds for job in last_seen(ran.evidence).values()]
    reasons = Counter(
        outcome
        for ran in rounds
        for name in last_seen(ran.evidence)
        for outcome in outcomes_seen(ran.evidence, name).values()
    )
    complaints = [line for ran in rounds for line in ran.complaints]
    lines = [
        f"Seed {seed}: {len(rounds)} round{'s' if len(rounds) > 1 else ''}, "
        f"{sum(ran.seconds for ran in rounds):.0f} s.",
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {kind} | {done[kind]} |" for kind in Kind if done[kind]),
        "",
        "| outcome | |",
        "|---|---|",
        f"| jobs | {len(jobs)}: {_listed(Counter(job.phase for job in jobs))} |",
        f"| attempts | {sum(job.attempt for job in jobs)}: {_listed(reasons)} |",
        *_restarts(rounds),
        f"| attempts with a worker that Kubernetes made twice | {sum(len(doubled(ran.evidence)) for ran in rounds)} |",
        f"| times the record had to list again | {sum(ran.gaps for ran in rounds)} |",
        f"| complaints of the verdict | {len(complaints)} |",
        *(f"| | {complaint} |" for complaint in complaints),
    ]
    return "\n".join(lines)


def _restarts(rounds: Sequence[Ran]) -> list[str]:
    """Return the row of restarts; none where nobody could ask the operators."""
    counted = [ran.evidence.counted for ran in rounds if ran.evidence.counted is not None]
    return [f"| restarts, as the operators' metrics count them | {sum(counted)} |"] if counted else []


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
