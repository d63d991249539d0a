"""The end of the trainer decides about a pod, not that of its sidecars."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_operator.watch import api_objects, parse

SIDECAR = {"name": "proxy", "restartPolicy": "Always"}
Json = dict[str, Any]


def ended(code: int, at: str = "2026-11-23T10:00:00Z", **more: Any) -> Json:
    return {"terminated": {"exitCode": code, "finishedAt": at, **more}}


def seen(*, trainer: Json | None, init: dict[str, Json], containers: tuple[Json, ...] = (SIDECAR,)) -> Any:
    status: Json = {"initContainerStatuses": [{"name": name, "state": state} for name, state in init.items()]}
    if trainer is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": trainer}]
    raw = {
        "metadata": {"name": "flowers-1-0", "namespace": "team-a", "uid": "u"},
        "spec": {"initContainers": list(containers)},
        "status": status,
    }
    return parse.pod(api_objects.convert(raw, api_objects.Pod))


RUNS: Json = {"running": {}}
WAITS: Json = {"waiting": {"reason": "PodInitializing"}}
CRASHES: Json = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}


@pytest.mark.parametrize("code", [1, 2, 75, 143])
@pytest.mark.parametrize("trainer", [ended(0), RUNS, WAITS], ids=["ended", "runs", "waits"])
def test_the_exit_code_of_a_sidecar_does_not_count(trainer: Json, code: int) -> None:
    assert seen(trainer=trainer, init={"proxy": ended(code)}).exit_code is None


def test_the_trainer_s_failure_counts_also_after_that_of_a_sidecar() -> None:
    sidecar = ended(143, "2026-11-23T09:00:00Z")
    assert seen(trainer=ended(3), init={"proxy": sidecar}).exit_code == 3


def test_a_sidecar_that_cannot_start_explains_why_the_trainer_waits() -> None:
    assert seen(trainer=WAITS, init={"proxy": CRASHES}).waiting == "CrashLoopBackOff"
    assert seen(trainer=RUNS, init={"proxy": CRASHES}).waiting == ""
    assert seen(trainer=ended(0), init={"proxy": CRASHES}).waiting == ""


@pytest.mark.parametrize("code", [1, 2, 3, 75, 76])
def test_an_init_container_that_fails_is_a_failure_of_the_program(code: int) -> None:
    found = seen(trainer=WAITS, init={"fetch": ended(code, message="no route")}, containers=({"name": "fetch"},))
    assert found.exit_code == 1
    assert found.termination_message == f"init container 'fetch' ended with exit code {code}. no route"


def test_the_container_that_prepares_the_source_is_the_trainer_s_own() -> None:
    assert seen(trainer=WAITS, init={"source": ended(2)}, containers=({"name": "source"},)).exit_code == 2
