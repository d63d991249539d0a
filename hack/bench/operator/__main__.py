"""`make bench BENCH=operator`: the operator against Kubeflow's training-operator and against Jobs created by hand.

etcd, API server, controller manager and scheduler are real; KWOK simulates the nodes. One JSON line for each figure on
standard output; each contender's times on standard error. The exit code is 0 whether goals are met or not.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from hack.bench.figures import figure, progress, publish
from hack.bench.operator.many_jobs import (
    BY_HAND,
    OURS,
    PEER,
    PEER_RAISED,
    Contender,
    Mass,
    calls_of_a_life,
    measure,
    percentile,
)

ROUNDS = 3
# Goals are set for these numbers of jobs.
FEW, MANY, LIFE = 100, 1000, 100
ABSOLUTE = "1"


def main() -> None:
    figures = {"few": _few, "many": _many, "calls": _calls}
    parser = argparse.ArgumentParser(prog="python -m hack.bench.operator", description=__doc__)
    parser.add_argument("--only", choices=figures, action="append", help="these figures alone; repeatable")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clusters and their folders are removed
    began = time.monotonic()
    for name in arguments.only or figures:
        figures[name]()
        progress(f"{time.monotonic() - began:.0f} s so far")


def _few() -> None:
    """Compare with the defaults of a cluster."""
    measured = _interleaved([OURS, PEER, PEER_RAISED, BY_HAND], FEW)
    for percent in (50, 99):
        for against in (PEER, PEER_RAISED):
            most = 0.2 if against is PEER else 1.0
            _publish_times("to_child", percent, FEW, measured, against, most)
        for against, most in ((PEER, 0.2), (PEER_RAISED, 1.0), (BY_HAND, 1.5)):
            _publish_times("to_pods", percent, FEW, measured, against, most)


def _many() -> None:
    """Compare with Kubernetes itself, and with a peer without its rate limits."""
    measured = _interleaved([OURS, PEER_RAISED, BY_HAND], MANY)
    ours = measured[OURS.name]
    for percent in (50, 99):
        _publish_times("to_child", percent, MANY, measured, PEER_RAISED, 1.0)
        _publish_times("to_pods", percent, MANY, measured, PEER_RAISED, 1.0)
        _publish_times("to_pods", percent, MANY, measured, BY_HAND, 1.25)
    _publish_absolute("created_to_child_p99_seconds", MANY, [percentile(mass.to_child, 99) for mass in ours], "s", 10)
    spent = [1000 * mass.whole_cpu_seconds / mass.jobs for mass in ours]
    _publish_absolute("cpu_ms_per_job", MANY, spent, "ms", 8)
    _publish_absolute("resident_mib", MANY, [mass.resident for mass in ours], "MiB", 200)


def _calls() -> None:
    """Count the calls of whole lives of jobs, from creation to Succeeded."""
    for contender in (PEER_RAISED, OURS):
        calls = calls_of_a_life(contender, LIFE)
        total = sum(calls.values())
        by_verb = ", ".join(f"{name} {count:.2f}" for name, count in sorted(calls.items()))
        progress(f"  {contender.name}: {total:.2f} calls a job: {by_verb}")
        if contender is OURS:
            _publish_absolute("api_calls_per_job", LIFE, [total], "calls", 7)


def _interleaved(contenders: Sequence[Contender], jobs: int) -> dict[str, list[Mass]]:
    """Run A B C A B C …, so that another process on the machine disturbs all contenders alike."""
    measured: dict[str, list[Mass]] = {contender.name: [] for contender in contenders}
    for number in range(ROUNDS):
        for contender in contenders:
            mass = measure(contender, jobs)
            measured[contender.name].append(mass)
            progress(f"  {jobs} jobs, round {number + 1}, {contender.name}: {_text(mass)}")
    return measured


def _text(mass: Mass) -> str:
    child, pods = ([percentile(values, percent) for percent in (50, 99)] for values in (mass.to_child, mass.to_pods))
    return (
        f"child {child[0]:.2f} / {child[1]:.2f} s, all pods {pods[0]:.2f} / {pods[1]:.2f} s (p50 / p99), "
        f"{mass.calls_per_job:.1f} calls a job, {mass.resident:.0f} MiB, "
        f"{1000 * mass.cpu_seconds / mass.jobs:.1f} CPU ms a job until all pods, "
        f"{1000 * mass.whole_cpu_seconds / mass.jobs:.1f} until its work was done"
    )


def _publish_times(
    what: str, percent: int, jobs: int, measured: dict[str, list[Mass]], against: Contender, most: float
) -> None:
    ours, theirs = (
        [percentile(getattr(mass, what), percent) for mass in measured[name]] for name in (OURS.name, against.name)
    )
    name = f"operator.created_{what}_p{percent}_seconds.{jobs}_jobs"
    publish(figure(name, ours, theirs, unit="s", against=against.name, most=most))


def _publish_absolute(what: str, count: int, values: Sequence[float], unit: str, most: float) -> None:
    """Publish a figure with a goal of its own: its ratio is the value."""
    name = f"operator.{what}.{count}_jobs"
    publish(figure(name, values, [1.0] * len(values), unit=unit, against=ABSOLUTE, most=most))


if __name__ == "__main__":
    main()
