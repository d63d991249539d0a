"""Sweeps of stub trials on KWOK's nodes: the time between two trials, the operator's calls for a trial, its memory.

Times are the API server's own, from its audit log: from the last status of a trial's pod to the creation of the next
trial's pod. It includes the job controller, the job's own status, the proposal and the scheduling of the next job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hack.bench.operator.fleet import NAMESPACE, cpu_seconds, fleet, resident_mib, wait_for
from hack.bench.operator.own_operator import USER, own_job, running_own_operator
from tests.testbed import Request

_SWEEPS = f"/apis/mptraining.dev/v1alpha1/namespaces/{NAMESPACE}/mptrainingsweeps"
_NAME = "sweep"
# A leader's lock and reviews of tokens grow with time and pods' reports, not with trials. Events do, as
# the name of the figure says.
_BESIDES = ("events", "leases", "tokenreviews", "")
_FINISHED = {
    **{"mptraining": 1, "kind": "Finished", "time": 0, "attempt": 1, "incarnation": "stub", "worker": 0},
    **{"reason": "Succeeded", "exitCode": 0, "message": "", "metrics": {"loss": 0.5}},
}


@dataclass(frozen=True)
class Swept:
    """One sweep: seconds between trials, the operator's calls by verb and resource but those of `_BESIDES`, its memory
    in MiB before the sweep and at its end, its CPU seconds, and the seconds from the first trial to the end.
    """

    trials: int
    gaps: list[float]
    calls: Counter[str]
    before: float
    resident: float
    cpu_seconds: float
    seconds: float

    @property
    def calls_per_trial(self) -> float:
        return sum(self.calls.values()) / self.trials

    @property
    def writes_per_second(self) -> float:
        """Status writes of the sweep, for each second that it ran."""
        return self.calls["patch mptrainingsweeps/status"] / self.seconds


def measure(trials: int, *, parallel: int, algorithm: str, seconds: float = 3600) -> Swept:
    """Run one sweep to its end. Raises TimeoutError."""
    with (
        fleet(complete=True, message=json.dumps(_FINISHED)) as control_plane,
        running_own_operator(control_plane) as server,
    ):
        wait_for(lambda: b"leading as" in server.log.read_bytes(), "a leader", of=server, seconds=120)
        before, computed = resident_mib(server), cpu_seconds(server)
        control_plane.rest.post(_SWEEPS, _document(trials, parallel, algorithm))

        def ended() -> bool:
            status = control_plane.rest.get(f"{_SWEEPS}/{_NAME}").get("status", {})
            return status.get("phase") in ("Succeeded", "Failed")

        wait_for(ended, f"{trials} trials", of=server, seconds=seconds, every=2)
        requests = control_plane.requests()
        status = control_plane.rest.get(f"{_SWEEPS}/{_NAME}")["status"]
        assert status["succeeded"] == trials, status["conditions"]
        began = next(each.ended for each in requests if (each.verb, each.resource) == ("create", "mptrainingsweeps"))
        own = [each for each in requests if each.user == USER and each.began >= began]
        written = [each.ended for each in own if (each.resource, each.subresource) == ("mptrainingsweeps", "status")]
        return Swept(
            trials=trials,
            gaps=_gaps(requests, parallel),
            calls=Counter(_call(each) for each in own if each.verb != "watch" and each.resource not in _BESIDES),
            before=before,
            resident=resident_mib(server),
            cpu_seconds=cpu_seconds(server) - computed,
            seconds=max(written) - began,
        )


def text(swept: Swept) -> str:
    """Return the figures of one sweep for people."""
    calls = ", ".join(f"{name} {count / swept.trials:.2f}" for name, count in sorted(swept.calls.items()))
    return (
        f"{swept.trials} trials in {swept.seconds:.0f} s, {swept.before:.0f} MiB before, {swept.resident:.0f} MiB at "
        f"the end, {1000 * swept.cpu_seconds / swept.trials:.1f} CPU ms a trial, "
        f"calls a trial without events and leases: {calls}"
    )


def _document(trials: int, parallel: int, algorithm: str) -> dict[str, Any]:
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingSweep",
        "metadata": {"name": _NAME},
        "spec": {
            "objective": {"metric": "loss", "direction": "Minimize"},
            "algorithm": {"name": algorithm, "seed": 7},
            "parameters": [
                {"path": "training.optimizer.config.learning_rate", "logUniform": {"low": 1e-5, "high": 1e-1}},
                {"path": "training.batchSize.global", "int": {"low": 32, "high": 512, "step": 32}},
            ],
            "trials": {"max": trials, "parallel": parallel},
            "job": {
                **own_job("trial", 1)["spec"],
                "training": {"epochs": 1, "optimizer": {"className": "Adam", "config": {"learning_rate": 0.001}}},
            },
        },
    }


def _gaps(requests: Sequence[Request], parallel: int) -> list[float]:
    """Return the seconds from each end of a trial's pod to the creation of the pod that follows it.

    With `parallel` trials the first pods follow no end, and the pod number `parallel` + n follows the end number n.
    """
    pods = [each for each in requests if each.resource == "pods" and each.code < 300]
    created = sorted(each.ended for each in pods if each.verb == "create" and not each.subresource)
    last: dict[str, float] = {}
    for each in pods:
        if each.verb in ("patch", "update") and each.subresource == "status":
            last[each.name] = max(each.ended, last.get(each.name, 0.0))
    return [max(0.0, after - end) for end, after in zip(sorted(last.values()), created[parallel:], strict=False)]


def _call(request: Request) -> str:
    return f"{request.verb} {request.resource}{f'/{request.subresource}' if request.subresource else ''}"
