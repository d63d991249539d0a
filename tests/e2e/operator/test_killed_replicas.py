"""Replicas that are killed at any moment, and an upgrade, beside jobs."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.testbed import Behaviour, Exit, Run
from tests.testbed.nodes.pods import Pod


def test_killed_at_any_moment_nothing_is_lost_and_nothing_doubled(alone: Any) -> None:
    chance = random.Random(4)

    def script(pod: Pod) -> Behaviour:
        if pod.job.endswith("-1") and pod.job.startswith("odd"):
            return Exit(1, after=0.5)
        return Exit(0, after=0.5)

    names = [f"{'odd' if number % 2 else 'even'}-{number}" for number in range(12)]
    for round in range(6):
        for name in names[2 * round : 2 * round + 2]:
            alone.create(name, script)
        operator = alone.operator(ready=False, lease={"durationSeconds": 3, "renewSeconds": 0.5, "name": "killed"})
        operator.server.wait_until(lambda operator=operator: "leading" in operator.log, seconds=120)
        time.sleep(chance.uniform(0, 0.6))
        operator.kill()
    alone.operator()
    for name in names:
        status = alone.phase(name, "Succeeded")
        odd = name.startswith("odd")
        assert status["currentAttempt"] == (2 if odd else 1), status
        assert (status["applicationFailures"], status["infrastructureRestarts"]) == (int(odd), 0)
        assert len(alone.batch_jobs(name)) == (2 if odd else 1)


def test_an_upgrade_while_jobs_run_changes_nothing_of_them(alone: Any) -> None:
    old = alone.operator(trainerImage="mptraining/trainer:old")
    alone.create("older", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.5))
    alone.running("older")
    old.stop()
    alone.operator(trainerImage="mptraining/trainer:new")
    pod = alone.control_plane.pods.of_job(alone.namespace, "older-1")[0]
    alone.kubelet.tell(pod, Exit(75))
    alone.phase("older", "Succeeded")
    alone.create("newer", lambda pod: Exit(0))
    alone.phase("newer", "Succeeded")

    def image(name: str) -> str:
        job = alone.child("batch/v1 jobs", name)
        return str(job["spec"]["template"]["spec"]["containers"][0]["image"])

    assert [image("older-1"), image("older-2")] == ["mptraining/trainer:old"] * 2
    assert image("newer-1") == "mptraining/trainer:new"
