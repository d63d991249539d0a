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
from dataclasses import dataclass, replace

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
    names,
    percentile,
    to_the_end,
)


@dataclass(frozen=True)
class Effort:
    """The number of jobs and rounds. Goals are set for FULL's numbers of jobs."""

    few: int
    many: int
    rounds: int
    life: int
    lives: int


FULL = Effort(few=100, many=1000, rounds=3, life=100, lives=10_000)
# Tests that every kind of figure is produced, not its value.
QUICK = Effort(few=4, many=6, rounds=1, life=3, lives=6)

FIGURES = ("few", "many", "calls", "lives")
# Each contender's cluster takes seconds to start; these produce every kind of figure.
QUICK_FIGURES = ("many", "calls", "lives")
ABSOLUTE = "1"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.operator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a handful of jobs, one round: a test of the benchmark")
    parser.add_argument("--only", choices=FIGURES, action="append", help="these figures alone; repeatable")
    parser.add_argument("--others", action="store_true", help="the other contenders alone, which makes no figures")
    parser.add_argument("--rounds", type=int, help="instead of 3, of each contender")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clusters and their folders are removed
    effort, began = QUICK if arguments.quick else FULL, time.monotonic()
    if arguments.rounds:
        effort = replace(effort, rounds=arguments.rounds)
    for name in arguments.only or (QUICK_FIGURES if arguments.quick else FIGURES):
        _figures(name, effort, ours=not arguments.others)
        progress(f"{time.monotonic() - began:.0f} s so far")


def _figures(name: str, effort: Effort, *, ours: bool) -> None:
    if name == "few":
        _few(effort, ours)
    elif name == "many":
        _many(effort, ours)
    elif name == "calls":
        _calls(effort, ours)
    elif name == "lives" and ours:
        _lives(effort.lives)


def _few(effort: Effort, ours: bool) -> None:
    """Compare with the defaults of a cluster."""
    measured = _interleaved([*([OURS] if ours else []), PEER, PEER_RAISED, BY_HAND], effort.few, effort.rounds)
    if not ours:
        return
    for percent in (50, 99):
        for against in (PEER, PEER_RAISED):
            most = 0.2 if against is PEER else 1.0
            _publish_times("to_child", percent, effort.few, measured, against, most)
        for against, most in ((PEER, 0.2), (PEER_RAISED, 1.0), (BY_HAND, 1.5)):
            _publish_times("to_pods", percent, effort.few, measured, against, most)


def _many(effort: Effort, with_ours: bool) -> None:
    """Compare with Kubernetes itself, and with a peer without its rate limits."""
    measured = _interleaved([*([OURS] if with_ours else []), PEER_RAISED, BY_HAND], effort.many, effort.rounds)
    if not with_ours:
        return
    ours = measured[OURS.name]
    for percent in (50, 99):
        _publish_times("to_child", percent, effort.many, measured, PEER_RAISED, 1.0)
        _publish_times("to_pods", percent, effort.many, measured, PEER_RAISED, 1.0)
        _publish_times("to_pods", percent, effort.many, measured, BY_HAND, 1.25)
    _publish_absolute(
        "created_to_child_p99_seconds", effort.many, [percentile(one.to_child, 99) for one in ours], "s", 10
    )
    spent = [1000 * one.whole_cpu_seconds / one.jobs for one in ours]
    _publish_absolute("cpu_ms_per_job", effort.many, spent, "ms", 8)
    _publish_absolute("resident_mib", effort.many, [one.resident for one in ours], "MiB", 200)


def _calls(effort: Effort, ours: bool) -> None:
    """Count the calls of whole lives of jobs, from creation to Succeeded."""
    for contender in (PEER_RAISED, *([OURS] if ours else [])):
        calls = calls_of_a_life(contender, effort.life)
        total = sum(calls.values())
        by_verb = ", ".join(f"{name} {count:.2f}" for name, count in sorted(calls.items()))
        progress(f"  {contender.name}: {total:.2f} calls a job: {by_verb}")
        if contender is OURS:
            _publish_absolute("api_calls_per_job", effort.life, [total], "calls", 7)


def _lives(jobs: int) -> None:
    """Run jobs to their end, and count those with another number of children than one."""
    lives = to_the_end(OURS, jobs)
    wrong = [name for name in names(jobs) if lives.children[name] != 1]
    progress(f"  {1000 * lives.cpu_seconds / jobs:.1f} CPU ms a job, {lives.resident:.0f} MiB at the end")
    for name in wrong[:20]:
        progress(f"  {name} had {lives.children[name]} children")
    _publish_absolute("jobs_without_one_child", jobs, [len(wrong)], "jobs", 0)
    _publish_absolute("seconds_until_all_succeeded", jobs, [lives.seconds], "s", 3600)


def _interleaved(contenders: Sequence[Contender], jobs: int, rounds: int) -> dict[str, list[Mass]]:
    """Run A B C A B C …, so that another process on the machine disturbs all contenders alike."""
    measured: dict[str, list[Mass]] = {each.name: [] for each in contenders}
    for number in range(rounds):
        for contender in contenders:
            one = measure(contender, jobs)
            measured[contender.name].append(one)
            progress(f"  {jobs} jobs, round {number + 1}, {contender.name}: {_text(one)}")
    return measured


def _text(one: Mass) -> str:
    child, pods = ([percentile(values, percent) for percent in (50, 99)] for values in (one.to_child, one.to_pods))
    return (
        f"child {child[0]:.2f} / {child[1]:.2f} s, all pods {pods[0]:.2f} / {pods[1]:.2f} s (p50 / p99), "
        f"{one.calls_per_job:.1f} calls a job, {one.resident:.0f} MiB, "
        f"{1000 * one.cpu_seconds / one.jobs:.1f} CPU ms a job until all pods, "
        f"{1000 * one.whole_cpu_seconds / one.jobs:.1f} until its work was done ("
        + ", ".join(f"{name} {1000 * seconds / one.jobs:.1f}" for name, seconds in one.servers.items())
        + ")"
    )


def _publish_times(
    what: str, percent: int, jobs: int, measured: dict[str, list[Mass]], against: Contender, most: float
) -> None:
    ours, theirs = (
        [percentile(one.to_child if what == "to_child" else one.to_pods, percent) for one in measured[name]]
        for name in (OURS.name, against.name)
    )
    name = f"operator.created_{what}_p{percent}_seconds.{jobs}_jobs"
    publish(figure(name, ours, theirs, unit="s", against=against.name, most=most))


def _publish_absolute(what: str, count: int, values: Sequence[float], unit: str, most: float) -> None:
    """Publish a figure with a goal of its own: its ratio is the value."""
    name = f"operator.{what}.{count}_jobs"
    publish(figure(name, values, [1.0] * len(values), unit=unit, against=ABSOLUTE, most=most))


if __name__ == "__main__":
    main()
