"""The end of the trainer decides about a pod, not that of its sidecars or of containers that a webhook adds."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_operator.watch import api_objects, parse

SIDECAR = {"name": "proxy", "restartPolicy": "Always"}
Json = dict[str, Any]


def ended(code: int, at: str = "2026-11-23T10:00:00Z", **more: Any) -> Json:
    return {"terminated": {"exitCode": code, "finishedAt": at, **more}}


def seen(
    *,
    trainer: Json | None,
    init: dict[str, Json] | None = None,
    containers: tuple[Json, ...] = (SIDECAR,),
    injected: Json | None = None,
    phase: str = "Running",
) -> Any:
    status: Json = {"initContainerStatuses": [{"name": name, "state": state} for name, state in (init or {}).items()]}
    status["phase"] = phase
    if trainer is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": trainer}]
    if injected is not None:
        # The API server orders them by name; a webhook may add its container before the trainer.
        status["containerStatuses"] = [{"name": "mesh", "state": injected}, *status.get("containerStatuses", ())]
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
    assert not seen(trainer=trainer, init={"proxy": ended(code)}).failed


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


@pytest.mark.parametrize(
    ("trainer", "injected", "expected"),
    [
        (ended(0), RUNS, (0, False, "container 'mesh' runs on")),
        (ended(0), ended(2), (0, False, "container 'mesh' ended with exit code 2")),
        (ended(0), ended(0), (0, False, "")),
        (ended(1), RUNS, (1, True, "container 'mesh' runs on")),
        (ended(3), ended(0), (3, True, "")),
        (RUNS, RUNS, (None, False, "")),
        (RUNS, ended(1), (None, False, "container 'mesh' ended with exit code 1")),
        (RUNS, CRASHES, (None, False, "container 'mesh' does not run: CrashLoopBackOff: back-off 10s")),
        (WAITS, RUNS, (None, False, "")),
    ],
)
def test_a_container_that_a_webhook_adds_decides_nothing(
    trainer: Json, injected: Json, expected: tuple[int | None, bool, str]
) -> None:
    failed = injected.get("terminated", {}).get("exitCode") and "terminated" in trainer
    found = seen(trainer=trainer, injected=injected, phase="Failed" if failed else "Running")
    assert (found.exit_code, found.failed, found.other) == expected
    assert found.waiting == ""
    assert found.runs == (trainer is RUNS)
    assert found.starts_as_usual == (expected[0] is None and not expected[2])


def test_a_sidecar_that_crashes_while_the_trainer_runs_is_named() -> None:
    assert seen(trainer=RUNS, init={"proxy": CRASHES}).other.startswith("container 'proxy' does not run")
    assert seen(trainer=ended(0), init={"proxy": CRASHES}).other == ""


@pytest.mark.parametrize("name", ["proxy", "fetch"])
def test_the_init_container_that_the_trainer_waits_for_is_named(name: str) -> None:
    """A sidecar whose startup probe fails, and an init container that does not end."""
    raw = {
        "metadata": {"name": "flowers-1-0", "uid": "u"},
        "spec": {"initContainers": [SIDECAR, {"name": "fetch"}]},
        "status": {
            "phase": "Pending",
            "initContainerStatuses": [
                {"name": "proxy", "state": RUNS, "started": name != "proxy"},
                {"name": "fetch", "state": RUNS if name == "fetch" else WAITS},
            ],
            "containerStatuses": [{"name": "trainer", "state": WAITS}],
        },
    }
    assert parse.pod(api_objects.convert(raw, api_objects.Pod)).waits_for == name


@pytest.mark.parametrize(
    ("image_id", "image"),
    [("docker.io/own/trainer@sha256:01", "docker.io/own/trainer@sha256:01"), ("sha256:01", ""), ("", "")],
)
def test_the_image_with_its_digest_is_that_of_the_trainer(image_id: str, image: str) -> None:
    """An image that was loaded into the node, not pulled, has no name with a digest."""
    statuses = [{"name": "mesh", "imageID": "m@sha256:02"}, {"name": "trainer", "imageID": image_id}]
    raw = {"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": statuses}}
    assert parse.pod(api_objects.convert(raw, api_objects.Pod)).image == image
