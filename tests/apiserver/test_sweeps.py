"""Sweeps on a real API server: from their creation to their deletion, and suspension."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from tests.testbed import Behaviour, Exit, Run
from tests.testbed.nodes.behaviours import success_log
from tests.testbed.nodes.pods import Pod

TRIALS = 4
RATE, BATCH = "training.optimizer.config.learning_rate", "training.batchSize.global"


def objective(rate: float, batch: int) -> float:
    """Return the loss of a trial: a bowl with its bottom at a rate of 0.001 and a batch of 128."""
    return (math.log10(rate) + 3) ** 2 + ((batch - 128) / 64) ** 2


def sweeps(ns: Any) -> str:
    return f"/apis/mptraining.dev/v1alpha1/namespaces/{ns.namespace}/mptrainingsweeps"


def status(ns: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = ns.rest.get(f"{sweeps(ns)}/{name}").get("status", {})
    return found


def create(ns: Any, name: str, script: Callable[[Pod], Behaviour] | None = None) -> None:
    """Create a random search over learning rate and batch size: four trials, two at a time; stubs report their loss."""

    def loss(pod: Pod) -> Behaviour:
        training = ns.get(pod.labels["mptraining.dev/job"])["spec"]["training"]
        value = objective(training["optimizer"]["config"]["learning_rate"], training["batchSize"]["global"])
        return Exit(0, after=random.Random(pod.name).uniform(0.05, 0.3), message=success_log(value))

    optimizer = {"className": "Adam", "config": {"learning_rate": 0.001}}
    training = {"epochs": 1, "batchSize": {"global": 64}, "optimizer": optimizer}
    spec = {
        "objective": {"metric": "loss", "direction": "Minimize"},
        "algorithm": {"name": "Random", "seed": 5},
        "parameters": [
            {"path": RATE, "logUniform": {"low": 1e-5, "high": 1e-1}},
            {"path": BATCH, "int": {"low": 32, "high": 512, "step": 32}},
        ],
        "trials": {"max": TRIALS, "parallel": 2},
        "job": ns.document(name, workers=1, training=training)["spec"],
    }
    for number in range(1, TRIALS + 1):
        ns.scripts[f"{name}-{number}"] = script or loss
    about = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingSweep", "metadata": {"name": name}}
    ns.rest.post(sweeps(ns), {**about, "spec": spec})


def events(ns: Any, name: str) -> set[str]:
    query = {"fieldSelector": f"involvedObject.kind=MPTrainingSweep,involvedObject.name={name}"}
    return {each["reason"] for each in ns.rest.get(f"/api/v1/namespaces/{ns.namespace}/events", query)["items"]}


def started(ns: Any, job: str) -> None:
    """Wait until the sweep has created that job and all of its workers run."""
    ns.wait(lambda: ns.child("mptraining.dev/v1alpha1 mptrainingjobs", job), lambda found: found is not None)
    ns.running(job)


def until(ns: Any, name: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    found: dict[str, Any] = ns.wait(lambda: status(ns, name), holds)
    return found


def test_a_sweep_from_its_creation_to_its_deletion(ns: Any) -> None:
    create(ns, "bowl")
    ended = until(ns, "bowl", lambda found: found.get("phase") == "Succeeded")
    trials = ended["trials"]
    assert [(trial["number"], trial["job"], trial["state"]) for trial in trials] == [
        (number, f"bowl-{number}", "Succeeded") for number in range(1, TRIALS + 1)
    ]
    best = min(trials, key=lambda each: float(each["objective"]))
    assert ended["best"] == {key: best[key] for key in ("number", "objective", "parameters")}
    for trial in trials:
        job = ns.get(trial["job"])["spec"]["training"]
        assert job["optimizer"]["config"]["learning_rate"] == trial["parameters"][RATE]
        assert job["batchSize"]["global"] == trial["parameters"][BATCH]
        expected = objective(trial["parameters"][RATE], trial["parameters"][BATCH])
        assert trial["objective"] == float(f"{expected:.6g}")
    assert ended["observedGeneration"] == 1
    ns.wait(lambda: events(ns, "bowl"), lambda found: "MaxTrials" in found)
    shown = ns.control_plane.kubectl("get", "mpts", "-n", ns.namespace, "bowl").stdout.splitlines()
    assert shown[0].split()[:3] == ["NAME", "PHASE", "TRIALS"]
    assert shown[1].split()[:3] == ["bowl", "Succeeded", f"{TRIALS}/{TRIALS}"]
    ns.rest.delete(f"{sweeps(ns)}/bowl")
    names = {trial["job"] for trial in trials}
    ns.wait(lambda: names & {each["metadata"]["name"] for each in ns.rest.get(ns.jobs)["items"]}, lambda left: not left)


def test_a_suspended_sweep_frees_its_pods_and_resumes(ns: Any) -> None:
    create(ns, "rest", lambda pod: Run() if pod.job.endswith("-1-1") else Exit(0, message=success_log(1.0)))
    started(ns, "rest-1")
    ns.rest.patch(f"{sweeps(ns)}/rest", {"spec": {"runPolicy": {"suspend": True}}}, kind="application/merge-patch+json")
    until(ns, "rest", lambda found: found.get("phase") == "Suspended")
    ns.phase("rest-1", "Suspended")
    ns.released("rest-1")
    ns.scripts["rest-1"] = lambda pod: Exit(0, message=success_log(0.5))
    ns.rest.patch(
        f"{sweeps(ns)}/rest", {"spec": {"runPolicy": {"suspend": False}}}, kind="application/merge-patch+json"
    )
    ended = until(ns, "rest", lambda found: found.get("phase") == "Succeeded")
    assert (ended["best"]["number"], ended["best"]["objective"]) == (1, 0.5)
