"""Seconds from a worker's crash to its next first step: by a new attempt, and by a restart of its container in place.

python -m tests.soak.in_place_restart --rounds 7

Requires `make cluster images`, and ContainerRestartRules for the second way: on by default since Kubernetes 1.35, in
1.34 behind that feature gate of API server and kubelet. Without it only the attempts are measured, and the
exit code is 3.

One worker runs a script that trains one step and then ends with exit code 1, the first time. An attempt is the
operator's; `restart.programSeconds`, its wait before the second one, is set to 0.1 s. In place, the same pod template
is that of a Job without the operator, with a rule that restarts the container after exit code 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from hack.cluster.installation import configure, install
from hack.cluster.kubectl import kubectl

NAMESPACE = "in-place"
NO_RULES = 3
_PATIENCE = 600.0
_TRAINER = "trainer"
# /tmp is of the pod: a container that is restarted in place finds the file, a new pod does not.
SCRIPT = """
import os, pathlib, sys, time
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.ones([8, 1]), tf.ones([8, 1]), verbose=0)
print(f"AT first-step {time.time()}", flush=True)
crashed = pathlib.Path("/tmp/crashed")
if os.environ["MPTRAINING_ATTEMPT"] == "1" and not crashed.exists():
    crashed.touch()
    print(f"AT crash {time.time()}", flush=True)
    os._exit(1)
"""


def job(name: str) -> dict[str, Any]:
    """Return the job whose first process crashes after its first step."""
    spec = {
        "accelerator": {"type": "cpu"},
        "program": {"script": {"path": "train.py"}},
        "source": {"configMap": {"name": "program"}},
        "runPolicy": {"backoffLimit": 3},
    }
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def in_place(attempt: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a Job with the template of an attempt's Job, whose container is restarted after exit code 1."""
    spec = json.loads(json.dumps(attempt["spec"]))
    for field in ("selector", "manualSelector"):
        spec.pop(field, None)
    # Without the labels by which the operator and the Job controller find pods.
    spec["template"]["metadata"]["labels"] = {"app": name}
    (trainer,) = (each for each in spec["template"]["spec"]["containers"] if each["name"] == _TRAINER)
    trainer["restartPolicy"] = "Never"
    trainer["restartPolicyRules"] = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def times(log: str) -> dict[str, float]:
    """Return the time of each mark in a log, in seconds since 1970."""
    marks = (line.split() for line in log.splitlines() if line.startswith("AT "))
    return {name: float(at) for _, name, at in marks}


def logs(pod: str, *, previous: bool = False) -> str:
    arguments = ("logs", pod, "-n", NAMESPACE, "-c", _TRAINER, *(["--previous"] if previous else []))
    return kubectl(*arguments, check=False)


def pods(selector: str) -> list[dict[str, Any]]:
    found = json.loads(kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "json"))["items"]
    return sorted(found, key=lambda each: str(each["metadata"]["creationTimestamp"]))


def waited(seen: Callable[[], float | None], what: str) -> float:
    """Return what `seen` returns once it is there. Raises TimeoutError."""
    end = time.monotonic() + _PATIENCE
    while (found := seen()) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} after {_PATIENCE:.0f} s")
        time.sleep(0.2)
    return found


def by_attempt(name: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds, and the Indexed Job of the first attempt."""
    kubectl("apply", "-f", "-", text=yaml.safe_dump(job(name)))
    crash = 0.0
    first: dict[str, Any] = {}

    def seen() -> float | None:
        nonlocal crash, first
        for each in pods(f"mptraining.dev/job={name}"):
            found = times(logs(each["metadata"]["name"]))
            if "crash" in found:
                crash = found["crash"]
                if not first:
                    owner = each["metadata"]["ownerReferences"][0]["name"]
                    first = json.loads(kubectl("get", "job", owner, "-n", NAMESPACE, "-o", "json"))
            elif crash and "first-step" in found:
                return found["first-step"] - crash
        return None

    return waited(seen, f"second attempt of {name}"), first


def by_restart(attempt: dict[str, Any], name: str) -> float | None:
    """Return the seconds; None if the API server drops the rules."""
    kubectl("apply", "-f", "-", text=yaml.safe_dump(in_place(attempt, name)))
    stored = json.loads(kubectl("get", "job", name, "-n", NAMESPACE, "-o", "json"))
    if not any("restartPolicyRules" in each for each in stored["spec"]["template"]["spec"]["containers"]):
        return None

    def seen() -> float | None:
        for each in pods(f"app={name}"):
            pod = each["metadata"]["name"]
            before, after = times(logs(pod, previous=True)), times(logs(pod))
            if "crash" in before and "first-step" in after:
                return after["first-step"] - before["crash"]
        return None

    return waited(seen, f"restart of {name}")


def table(attempts: Sequence[float], restarts: Sequence[float]) -> str:
    def row(what: str, values: Sequence[float]) -> str:
        median, shortest, longest = (f"{each:.1f} s" for each in (statistics.median(values), min(values), max(values)))
        return f"| {what} | {median} | {shortest} to {longest} |"

    lines = [
        f"One worker on kind, {len(attempts)} rounds by turns, images on the node, no wait before the next attempt.",
        "",
        "| From a worker's crash to its next first step | median | from, to |",
        "|---|---|---|",
        row("a new attempt: a Job, a pod, the source, the process", attempts),
        *([row("its container restarted in place: the process", restarts)] if restarts else []),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.in_place_restart", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds (7)")
    given = parser.parse_args(arguments)
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
    install()
    restart = {"programSeconds": 0.1, "infrastructureSeconds": 0.1}
    configure({"cpuFallback": True, "namespaces": [NAMESPACE], "restart": restart})
    kubectl("create", "namespace", NAMESPACE)
    attempts: list[float] = []
    restarts: list[float] = []
    try:
        kubectl("create", "configmap", "program", "-n", NAMESPACE, f"--from-literal=train.py={SCRIPT}")
        for number in range(given.rounds):
            seconds, first = by_attempt(f"attempts-{number}")
            attempts.append(seconds)
            found = by_restart(first, f"restarts-{number}")
            if found is not None:
                restarts.append(found)
            print(f"round {number}: {seconds:.1f} s by an attempt, {found or 0:.1f} s in place", flush=True)
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
        configure({"cpuFallback": True})
    print(table(attempts, restarts), flush=True)
    return 0 if restarts else NO_RULES


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
