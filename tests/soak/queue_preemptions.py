"""A job that the real Kueue preempts again and again while it trains must end with the bits of an undisturbed one.

etcd, API server, controller manager, scheduler, Kueue and operator are real; the pods' own command runs on this
machine. Another team's Job of a higher priority asks for the whole quota, and is deleted as soon as Kueue has admitted
it. The worker gets its SIGTERM, which a kubelet sends when the pod is deleted, at a random moment of its training.

python -m tests.soak.queue_preemptions --preemptions 50
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from mptraining_api import events
from mptraining_api.events import Finished, Saved, Started
from mptraining_records.convert.convert import convert
from tests.soak.kill_and_resume.rounds import digests
from tests.testbed import ControlPlane, Options
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.kueue import Kueue, holds
from tests.testbed.kubernetes.operator_namespace import OperatorNamespace
from tests.testbed.nodes.pod_process import PodProcess
from tests.testbed.nodes.pods import Pod

NAMESPACE, QUEUE, JOB = "queued", "gpus", "trained"
QUOTA = {"cpu": "1", "memory": "4Gi"}
_BATCH_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
# Records of one epoch, steps of the job, and its batch: one step takes about a millisecond.
_RECORDS, _STEPS, _BATCH = 4096, 60_000, 16
# Seconds from the trainer's start until SIGTERM, the tracing of the first step included, and the patience for anything.
_TRAINS, _PATIENCE = (0.0, 4.0), 240.0


@dataclass
class Result:
    """Of one run: the digests of its run folder, the attempts, and the seconds of each preemption.

    `given`: from SIGTERM to the admission of the other Job, the checkpoint included; `back`: from the deletion of that
    Job until the trainer has restored its checkpoint.
    """

    attempts: int = 0
    outcomes: list[str] = field(default_factory=list)
    charged: int = 0
    workloads: set[str] = field(default_factory=set)
    given: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    @property
    def preemptions(self) -> int:
        return len(self.given)


class QueuedTraining:
    """The servers, Kueue and one operator, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            servers = stack.enter_context(ControlPlane(self._folder / "servers", Options(scheduler=True)))
            self.kueue = stack.enter_context(Kueue(servers))
            install(servers)
            servers.nodes.create("node")
            settings = self._folder / "operator"
            settings.mkdir()
            self.ns = OperatorNamespace(servers, servers.namespace(NAMESPACE), settings, graceSeconds=120)
            stack.callback(self.ns.close)
            self.ns.operator()
            for name, value in (("low", 1), ("high", 100)):
                self.kueue.priority(name, value)
            self.kueue.queue(NAMESPACE, QUEUE, QUOTA, preemption={"withinClusterQueue": "LowerPriority"})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, data: Path, folder: Path, *, preemptions: int, seed: int, seconds: float = math.inf) -> Result:
        """Train the job to its end and preempt it so often, but no more after so many seconds.

        Raises AssertionError with what it waited for.
        """
        found, chance = Result(), random.Random(f"queue preemptions {seed}")
        until = time.monotonic() + seconds
        folder.mkdir(parents=True)
        self.ns.create(
            JOB,
            nodes=1,
            data={"train": [f"{data}/train-*.tfrecord"], "label": "label"},
            training={"totalSteps": _STEPS, "stepsPerExecution": 1, "batchSize": {"global": _BATCH}, "seed": 3},
            checkpoint={"everySteps": _STEPS},
            podTemplate={"resources": {"requests": QUOTA}},
            output={"uri": str(folder / "run")},
            scheduling={"queueName": QUEUE, "workloadPriorityClassName": "low"},
        )
        step, freed = 0, time.monotonic()
        for number in range(1, preemptions + 2):
            last = number > preemptions or time.monotonic() > until
            with PodProcess(self.ns.rest, self._placed(number), folder / f"attempt-{number}") as worker:
                self.ns.running(JOB, attempt=number, seconds=_PATIENCE)
                found.workloads.add(self._workload()["metadata"]["uid"])
                if not last:
                    self._preempt(number)
                worker.wait_for('"kind":"Started"', seconds=_PATIENCE)
                found.back.append(time.monotonic() - freed)
                if last:
                    code = worker.end(seconds=_PATIENCE * 4)
                else:
                    time.sleep(chance.uniform(*_TRAINS))
                    code, freed = self._leave(number, worker, found)
                (started,), ended = _read(worker, Started), _read(worker, Finished if last else Saved)
            if started.first_step != step:
                found.complaints.append(f"attempt {number} began at step {started.first_step}, expected {step}")
            # An attempt that is preempted before its first step saves nothing new.
            if (last and not ended) or code != (0 if last else 75):
                raise AssertionError(f"attempt {number} ended with {code}:\n{worker.log[-3000:]}")
            found.steps.append(ended[-1].step - step if ended else 0)
            step += found.steps[-1]
            print(f"attempt {number} ended with {code} at step {step}", file=sys.stderr, flush=True)
            if last:
                break
        status = self.ns.phase(JOB, "Succeeded", "Failed", seconds=_PATIENCE)
        found.attempts = status["currentAttempt"]
        found.outcomes = [each["outcome"] for each in status["attempts"]]
        found.charged = status["applicationFailures"] + status["infrastructureRestarts"]
        self.ns.wait(self._workload, lambda each: holds(each, "Finished"), seconds=_PATIENCE)
        self.ns.delete(JOB)
        self.ns.wait(lambda: self.kueue.workloads(NAMESPACE), lambda left: not left, seconds=_PATIENCE)
        found.digests = digests(folder / "run")
        return found

    def _placed(self, attempt: int) -> Pod:
        def pods() -> list[Pod]:
            listed = self.ns.control_plane.pods.of_job(NAMESPACE, f"{JOB}-{attempt}")
            return [pod for pod in listed if pod.node and not pod.terminating and not pod.ended]

        pod = self.ns.wait(pods, len, seconds=_PATIENCE)[0]
        assert isinstance(pod, Pod)
        return pod

    def _preempt(self, number: int) -> None:
        """Create a Job for which Kueue preempts the training, and wait until the worker's pod is being deleted."""
        self.ns.rest.post(_BATCH_JOBS, rival(number))
        pods, name = self.ns.control_plane.pods, f"{JOB}-{number}"
        self.ns.wait(lambda: pods.of_job(NAMESPACE, name), lambda seen: seen[0].terminating, seconds=_PATIENCE)

    def _leave(self, number: int, worker: PodProcess, found: Result) -> tuple[int, float]:
        """End the worker as a kubelet does, and the other Job once it is admitted; return the worker's exit code and
        the time at which the quota is free again.
        """
        other = f"{_BATCH_JOBS}/rival-{number}"
        if not self.ns.rest.get(other)["spec"]["suspend"]:
            found.complaints.append(f"preemption {number}: the quota was given away while the worker trained")
        began = time.monotonic()
        code = worker.end(terminate=True, seconds=_PATIENCE)
        self.ns.wait(lambda: self.ns.rest.get(other), lambda job: not job["spec"]["suspend"], seconds=_PATIENCE)
        found.given.append(time.monotonic() - began)
        self.ns.rest.delete(other, {"propagationPolicy": "Background"})
        return code, time.monotonic()

    def _workload(self) -> dict[str, Any]:
        def owner(workload: dict[str, Any]) -> str:
            return str(workload["metadata"]["ownerReferences"][0]["name"])

        (mine,) = [each for each in self.kueue.workloads(NAMESPACE) if owner(each) == f"{JOB}-queue"]
        return mine


def rival(number: int) -> dict[str, Any]:
    """Return another team's Job of a higher priority, which needs the whole quota and whose pod finds no node."""
    container = {"name": "main", "image": "rival", "resources": {"requests": QUOTA}}
    labels = {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": "high"}
    spec = {"restartPolicy": "Never", "nodeSelector": {"rival": "none"}, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"rival-{number}", "labels": labels},
        "spec": {"suspend": True, "template": {"spec": spec}},
    }


def make_data(folder: Path) -> None:
    """Write the records of both runs."""
    numbers = np.random.default_rng(5)
    points, labels = numbers.normal(size=(_RECORDS, 3)).astype(np.float32), numbers.integers(0, 3, _RECORDS)
    np.savez(folder / "points.npz", point=points, label=labels)
    convert(str(folder / "points.npz"), str(folder), name="train", keep_order=True)


def complaints(undisturbed: Result, preempted: Result, *, preemptions: int) -> list[str]:
    """Return how the preempted run differs from what is specified, and from the undisturbed one."""
    found = [*undisturbed.complaints, *preempted.complaints]
    names = undisturbed.digests.keys() | preempted.digests.keys()
    found += [
        f"{name} differs" for name in sorted(names) if undisturbed.digests.get(name) != preempted.digests.get(name)
    ]
    if preempted.preemptions < preemptions:
        found.append(f"{preempted.preemptions} of {preemptions} preemptions in the time that was given")
    expected = [*["QueuePreempted"] * preempted.preemptions, "Succeeded"][-len(preempted.outcomes) :]
    if preempted.attempts != preempted.preemptions + 1 or preempted.outcomes != expected:
        found.append(f"{preempted.attempts} attempts with {preempted.outcomes}")
    if preempted.charged:
        found.append(f"{preempted.charged} restarts were charged")
    if len(preempted.workloads) != 1:
        found.append(f"{len(preempted.workloads)} Workloads, expected 1")
    return found


def table(undisturbed: Result, preempted: Result, wrong: Sequence[str], *, seed: int) -> str:
    """Return the figures as a table."""
    trained = preempted.steps[:-1]
    given, back = preempted.given, preempted.back[1:]
    lines = [
        f"Seed {seed}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f} at the end; {_STEPS:,} steps of one "
        "worker in float32, whose pod's own command runs on the same machine.",
        "",
        "| | |",
        "|---|---|",
        f"| preemptions while it trained | {preempted.preemptions} |",
        f"| digests as without preemptions (weights, optimizer, state, export, metrics) | "
        f"{sum(preempted.digests.get(name) == each for name, each in undisturbed.digests.items())} of "
        f"{len(undisturbed.digests)} |",
        f"| Workloads of the job; restarts charged to a budget | {len(preempted.workloads)}; {preempted.charged} |",
        f"| steps of an attempt: least, median, most | {min(trained):,}, {statistics.median(trained):,.0f}, "
        f"{max(trained):,} |",
        f"| seconds from SIGTERM until the other Job was admitted, checkpoint included: median, most | "
        f"{statistics.median(given):.1f}, {max(given):.1f} |",
        f"| seconds from its end until the trainer trained again: median, most | "
        f"{statistics.median(back):.1f}, {max(back):.1f} |",
        f"| complaints | {'; '.join(wrong) or 'none'} |",
    ]
    return "\n".join(lines)


def _read(process: PodProcess, kind: type[Any]) -> list[Any]:
    read = [events.parse(line) for line in process.log.splitlines() if line.startswith("{")]
    return [each for each in read if isinstance(each, kind)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.queue_preemptions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--preemptions", type=int, default=50, help="how often Kueue preempts the job (50)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no preemption after so many minutes")
    parser.add_argument("--seed", type=int, help="another draw of moments; one is made up and printed")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_data(folder)
        with QueuedTraining(folder) as training:
            undisturbed = training.run(folder, folder / "undisturbed", preemptions=0, seed=seed)
            preempted = training.run(
                folder, folder / "preempted", preemptions=given.preemptions, seed=seed, seconds=given.minutes * 60
            )
    wrong = complaints(undisturbed, preempted, preemptions=given.preemptions)
    print(table(undisturbed, preempted, wrong, seed=seed))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
