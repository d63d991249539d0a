"""A sweep whose operator is killed again and again must have the trials of one that was left alone.

etcd, API server, controller manager and operator are real; pods are simulated, and report an objective that follows
from the trial's parameters. The operator is killed (SIGKILL) at random moments after it began to lead, and started
again under the same name, as a kubelet restarts a container.

python -m tests.soak.sweep_kills --trials 40 --kills 50
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from tests.testbed import Behaviour, ControlPlane, Exit, Options
from tests.testbed.kubernetes.audit import Request
from tests.testbed.kubernetes.installation import OPERATOR, SYSTEM, grant_lease, install
from tests.testbed.kubernetes.rest import Rest
from tests.testbed.nodes.pods import Pod
from tests.testbed.processes import Server, free_ports

NAMESPACE, REPLICA = "sweeps", "sweep-operator-0"
_API = f"/apis/mptraining.dev/v1alpha1/namespaces/{NAMESPACE}"
# Seconds: the longest life of an operator that is killed, counted from when it leads; the time of a stub's worker at
# least; and until an operator leads and a sweep ends.
_LONGEST_LIFE = 1.5
_WORK = (0.05, 0.4)
_TO_LEAD, _TO_END = 180.0, 1800.0


@dataclass(frozen=True)
class Search:
    """A kind of sweep; `parallel` above 1 for algorithms whose proposals do not depend on the order of ends."""

    name: str
    algorithm: str
    parallel: int


SEARCHES = (Search("tpe", "TPE", 1), Search("random", "Random", 4))


@dataclass(frozen=True)
class Result:
    """A sweep after its end: number, parameters and objective of each trial, the creations of jobs, and the kills.

    `between`: the kills after which a trial was recorded without a job.
    """

    trials: tuple[tuple[int, Mapping[str, Any], float | None, str], ...]
    phase: str
    created: Counter[str]
    kills: int
    between: int
    seconds: float


class SweepServers:
    """The servers and one operator, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        # The shortest and longest time of a trial's worker in seconds.
        self.work = _WORK

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.control_plane = stack.enter_context(ControlPlane(self._folder, Options(audit=True)))
            install(self.control_plane)
            grant_lease(self.control_plane, NAMESPACE)
            self.control_plane.namespace(NAMESPACE)
            self.control_plane.nodes.create("node")
            self.rest: Rest = self.control_plane.rest
            stack.enter_context(self.control_plane.kubelet(self._behaviour, namespace=NAMESPACE))
            token = self.control_plane.token(SYSTEM, OPERATOR, seconds=12 * 3600)
            self._kubeconfig = self.control_plane.kubeconfig(REPLICA, token)
            self._start()
            stack.callback(lambda: self._operator.stop(seconds=10))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- the operator -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        (port,) = free_ports(1)
        settings = self._folder / f"{REPLICA}.yaml"
        settings.write_text(yaml.safe_dump(_settings(port)))
        environment = {
            "KUBECONFIG": str(self._kubeconfig),
            "POD_NAME": REPLICA,
            "POD_NAMESPACE": SYSTEM,
            "POD_SERVICE_ACCOUNT": OPERATOR,
        }
        command = [sys.executable, "-m", "mptraining_operator", "run", "--settings", str(settings)]
        log = self._folder / f"operator-{next(self._numbers)}.log"
        self._operator = Server(command, log=log, environment=environment)

    def kill(self, after: float) -> None:
        """Kill the operator so many seconds after it began to lead, and start it again."""
        self._operator.wait_until(lambda: "leading as" in self._operator.log.read_text(), seconds=_TO_LEAD)
        time.sleep(after)
        self._operator.signal(signal.SIGKILL)
        self._operator.wait(60)
        self._start()

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("operator-*.log")))

    # -- sweeps -------------------------------------------------------------------------------------------------

    def run(self, search: Search, *, trials: int, kills: int, seed: int, name: str) -> Result:
        """Run a sweep to its end and kill its operator so often meanwhile. Raises TimeoutError."""
        began, chance = time.monotonic(), random.Random(f"sweep kills {seed} {name}")
        self.rest.post(f"{_API}/mptrainingsweeps", document(search, trials=trials, seed=seed, name=name))
        done = between = 0
        while done < kills and not _ended(self._status(name)):
            self.kill(chance.uniform(0.0, _LONGEST_LIFE))
            done += 1
            between += self._recorded_without_job(name)
        while not _ended(status := self._status(name)):
            if time.monotonic() > began + _TO_END:
                raise TimeoutError(f"{name} has not ended after {_TO_END:.0f} s: {status}\n{self.logs()[-3000:]}")
            time.sleep(0.2)
        created = creations(self.control_plane.requests(), name)
        found = tuple(
            (each["number"], each["parameters"], each.get("objective"), each["state"])
            for each in status.get("trials", ())
        )
        return Result(found, status["phase"], created, done, between, time.monotonic() - began)

    def _status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"{_API}/mptrainingsweeps/{name}").get("status", {})
        return found

    def _recorded_without_job(self, name: str) -> bool:
        """Return whether the killed operator recorded a trial and did not create its job; the next operator starts."""
        recorded = {each["job"] for each in self._status(name).get("trials", ())}
        existing = {each["metadata"]["name"] for each in self.rest.get(f"{_API}/mptrainingjobs")["items"]}
        return bool(recorded - existing)

    def _behaviour(self, pod: Pod) -> Behaviour:
        name = pod.labels["mptraining.dev/job"]
        training = self.rest.get(f"{_API}/mptrainingjobs/{name}")["spec"]["training"]
        rate, units = training["optimizer"]["config"]["learning_rate"], training["batchSize"]["global"]
        return Exit(0, after=random.Random(name).uniform(*self.work), message=finished(objective(rate, units)))


def work(search: Search, trials: int, kills: int) -> tuple[float, float]:
    """Return the shortest and longest time of a trial's worker in seconds.

    Trials that run side by side take longer, so that the sweep does not end before its last kill: a kill takes about
    2.5 s with the start of the next operator.
    """
    longest = 3.0 * search.parallel * kills / trials
    return _WORK if search.parallel == 1 else (longest / 2, longest)


def objective(rate: float, batch: int) -> float:
    """Return the loss of a trial: a bowl with its bottom at a rate of 0.001 and a batch of 128."""
    return (math.log10(rate) + 3) ** 2 + ((batch - 128) / 64) ** 2


def finished(loss: float) -> str:
    """Return the termination log of a worker that has succeeded."""
    about = {"mptraining": 1, "kind": "Finished", "time": 0, "attempt": 1, "incarnation": "stub", "worker": 0}
    return json.dumps({**about, "reason": "Succeeded", "exitCode": 0, "message": "", "metrics": {"loss": loss}})


def document(search: Search, *, trials: int, seed: int, name: str) -> dict[str, Any]:
    """Return the sweep: the learning rate and the batch size of a stub."""
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingSweep",
        "metadata": {"name": name},
        "spec": {
            "objective": {"metric": "loss", "direction": "Minimize"},
            "algorithm": {"name": search.algorithm, "seed": seed},
            "parameters": [
                {"path": "training.optimizer.config.learning_rate", "logUniform": {"low": 1e-5, "high": 1e-1}},
                {"path": "training.batchSize.global", "int": {"low": 32, "high": 512, "step": 32}},
            ],
            "trials": {"max": trials, "parallel": search.parallel},
            "job": {
                "accelerator": {"type": "cpu"},
                "nodes": 1,
                "program": {"application": {"name": "mlp", "classes": 3}},
                "data": {"train": ["/data/train-*.tfrecord"]},
                "training": {
                    "epochs": 1,
                    "batchSize": {"global": 64},
                    "optimizer": {"className": "Adam", "config": {"learning_rate": 0.001}},
                },
            },
        },
    }


def creations(requests: Iterable[Request], sweep: str) -> Counter[str]:
    """Return how often each job of the sweep was created.

    The API server logs 504 for a request that it has stored and whose client was killed before the answer.
    """
    asked = [
        each
        for each in requests
        if (each.verb, each.resource) == ("create", "mptrainingjobs") and each.name.startswith(f"{sweep}-")
    ]
    created = Counter(each.name for each in asked if each.code == 201)
    created.update({each.name for each in asked if each.code == 504} - created.keys())
    return created


def complaints(undisturbed: Result, killed: Result, *, trials: int, kills: int) -> list[str]:
    """Return how the killed sweep differs from the undisturbed one."""
    found = [
        f"trial {one[0]}: {one[1:]} undisturbed, {other[1:]} killed"
        for one, other in zip(undisturbed.trials, killed.trials, strict=False)
        if one != other
    ]
    for name, result in (("undisturbed", undisturbed), ("killed", killed)):
        if [each[0] for each in result.trials] != list(range(1, trials + 1)):
            found.append(f"{name}: trials {[each[0] for each in result.trials]}, expected 1 to {trials}")
        if {each[3] for each in result.trials} != {"Succeeded"} or result.phase != "Succeeded":
            found.append(f"{name}: {result.phase}, trials {Counter(each[3] for each in result.trials)}")
        if (twice := [job for job, times in result.created.items() if times > 1]) or len(result.created) != trials:
            found.append(f"{name}: {len(result.created)} jobs were created for {trials} trials, twice: {twice}")
    if killed.kills < kills:
        found.append(f"the sweep ended after {killed.kills} of {kills} kills")
    return found


def missed(results: Sequence[Result]) -> list[str]:
    """Return what the kills of a whole run did not meet: the moment that the order of the two writes is made for."""
    if any(each.between for each in results):
        return []
    kills = sum(each.kills for each in results)
    return [f"none of {kills} kills was between the record of a trial and the creation of its job: kill more often"]


def table(rows: Sequence[tuple[Search, Result, Result, list[str]]], *, seed: int) -> str:
    """Return the figures as a table."""
    lines = [
        f"Seed {seed}; etcd, API server, controller manager and operator are real, pods are simulated.",
        "",
        "| sweep | trials | operator killed | of these between a trial's record and its job | jobs created | "
        "trials and parameters as undisturbed | seconds (undisturbed) | complaints |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for search, one, other, wrong in rows:
        same = sum(mine == theirs for mine, theirs in zip(other.trials, one.trials, strict=False))
        lines.append(
            f"| {search.algorithm}, parallel {search.parallel} | {len(other.trials)} | {other.kills} | {other.between} "
            f"| {sum(other.created.values())} | {same} | {other.seconds:.0f} ({one.seconds:.0f}) | {len(wrong)} |"
        )
    return "\n".join(lines)


def compare(
    servers: SweepServers, search: Search, *, trials: int, kills: int, seed: int, say: Callable[[str], None]
) -> tuple[Search, Result, Result, list[str]]:
    """Run the sweep undisturbed and killed, and compare."""
    servers.work = work(search, trials, kills)
    undisturbed = servers.run(search, trials=trials, kills=0, seed=seed, name=f"{search.name}-calm")
    say(f"{search.name}: undisturbed in {undisturbed.seconds:.0f} s")
    killed = servers.run(search, trials=trials, kills=kills, seed=seed, name=f"{search.name}-killed")
    wrong = complaints(undisturbed, killed, trials=trials, kills=kills)
    say(f"{search.name}: killed {killed.kills} times in {killed.seconds:.0f} s, {len(wrong)} complaints")
    return search, undisturbed, killed, wrong


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.sweep_kills", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--trials", type=int, default=40, help="trials of each sweep (40)")
    parser.add_argument("--kills", type=int, default=50, help="times that the operator is killed in each sweep (50)")
    parser.add_argument("--seed", type=int, default=7, help="of the proposals and of the moments of the kills (7)")
    given = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder, SweepServers(Path(folder)) as servers:
        for search in SEARCHES:
            row = compare(
                servers,
                search,
                trials=given.trials,
                kills=given.kills,
                seed=given.seed,
                say=lambda line: print(line, flush=True),
            )
            rows.append(row)
            print(*row[3], sep="\n", file=sys.stderr, flush=True)
        if any(row[3] for row in rows):
            print(servers.logs()[-20_000:], file=sys.stderr)
    print(table(rows, seed=given.seed))
    wanting = missed([row[2] for row in rows])
    print(*wanting, sep="\n", file=sys.stderr, flush=True)
    return int(bool(wanting) or any(row[3] for row in rows))


def _ended(status: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Finished" and each["status"] == "True" for each in status.get("conditions", ()))


def _settings(port: int) -> dict[str, Any]:
    return {
        "trainerImage": "mptraining/trainer:sweeps",
        "healthPort": port,
        "logFormat": "text",
        "namespaces": [NAMESPACE],
        "settleSeconds": 0.5,
        "graceSeconds": 1,
        "progress": {"enabled": False},
        "lease": {"durationSeconds": 15, "renewSeconds": 0.5, "name": NAMESPACE},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
