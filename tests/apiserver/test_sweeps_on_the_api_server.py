"""The CRD of sweeps on a real API server: what a user writes is stored as it is, CEL refuses what it can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hack.crd import SWEEP_RULES
from mptraining_api.sweep.actions import CreateJob, TrialJob
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.search_space import search_digest
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus
from mptraining_api.validation.yaml_text import read_yaml
from tests.testbed import ControlPlane, Refused
from tests.testbed.kubernetes.access import wait_until
from tests.unit.api.sweep.sweeps import document
from tests.unit.api.sweep.test_check import ISSUE

SWEEPS = "/apis/mptraining.dev/v1alpha1/namespaces/default/mptrainingsweeps"
ONE, NEGATIVE, REVERSED = {"low": 1, "high": 1}, {"low": -1, "high": 1}, {"low": 2, "high": 1}
JOBS = "/apis/mptraining.dev/v1alpha1/namespaces/default/mptrainingjobs"


def named(name: str, **spec: Any) -> dict[str, Any]:
    return document(**spec) | {"metadata": {"name": name}}


def refusal(control_plane: ControlPlane, sweep: dict[str, Any]) -> str | None:
    try:
        control_plane.rest.post(SWEEPS, sweep, {"dryRun": "All", "fieldValidation": "Strict"})
    except Refused as refused:
        return refused.message
    return None


def test_the_guides_sweep_is_stored_as_it_is_written(control_plane: ControlPlane) -> None:
    (text,) = read_yaml(ISSUE, file="sweep.yaml")
    content = text.content | {"metadata": {"name": "as-written"}}
    stored = control_plane.rest.post(SWEEPS, content, {"fieldValidation": "Strict"})
    assert stored["spec"] == content["spec"]
    assert stored["status"] == {"observedGeneration": -1}
    read, written = MPTrainingSweep.parse_document(stored).spec, MPTrainingSweep.parse_document(content).spec
    assert read == written
    assert search_digest(read) == search_digest(written)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"parameters": [{"path": "a b", "values": [1]}]}, "should match"),
        ({"parameters": [{"path": "workers", "values": [1], "step": 1}]}, "unknown field"),
        ({"algorithm": {"name": "Bayes"}}, "Unsupported value"),
        ({"trials": {"max": 1001}}, "less than or equal to 1000"),
        ({"job": None}, "Required value"),
    ],
)
def test_the_api_server_refuses(control_plane: ControlPlane, spec: dict[str, Any], text: str) -> None:
    """By the schema; the rules in CEL are in the next test."""
    assert text in (refusal(control_plane, named("refused", **spec)) or "")


def test_cel_and_python_agree(control_plane: ControlPlane) -> None:
    """Each rule, except those that compare with the old object, has a sweep that breaks it alone in both."""
    broken = {
        "metadata.name": named("a" * 40),
        "spec.parameters[]": named("a", parameters=[{"path": "a", "int": ONE, "uniform": ONE}]),
        "spec.parameters[].int.high": named("a", parameters=[{"path": "a", "int": REVERSED}]),
        "spec.parameters[].uniform.high": named("a", parameters=[{"path": "a", "uniform": REVERSED}]),
        "spec.parameters[].logUniform.high": named("a", parameters=[{"path": "a", "logUniform": REVERSED}]),
        "spec.parameters[].logUniform.low": named("a", parameters=[{"path": "a", "logUniform": NEGATIVE}]),
    }  # fmt: skip
    for field, sweep in broken.items():
        parsed = MPTrainingSweep.parse_document(sweep)
        failed = [
            rule.field for rule in SWEEP_RULES for _, value in rule.values(parsed) if rule.broken_at(value) is not None
        ]
        assert failed == [field]
        (rule,) = (each for each in SWEEP_RULES if each.field == field)
        assert rule.text in (refusal(control_plane, sweep) or "")


def test_objective_and_algorithm_stay_and_limits_may_change(control_plane: ControlPlane) -> None:
    control_plane.rest.post(SWEEPS, named("fixed"))

    def patch(spec: dict[str, Any]) -> Callable[[], Any]:
        return lambda: control_plane.rest.patch(f"{SWEEPS}/fixed", {"spec": spec})

    for spec in ({"algorithm": {"seed": 8}}, {"objective": {"direction": "Minimize"}}):
        with pytest.raises(Refused, match="no change of a sweep that exists"):
            patch(spec)()
    assert patch({"trials": {"max": 20}, "runPolicy": {"suspend": True}})()["spec"]["trials"]["max"] == 20


def test_a_plans_status_and_job_are_accepted_and_shown(control_plane: ControlPlane) -> None:
    stored = control_plane.rest.post(SWEEPS, named("shown", trials={"max": 4, "parallel": 1}))
    sweep = MPTrainingSweep.parse_document(stored)
    first = plan(sweep, None, {}, 1_000_000.0)
    ended = plan(
        sweep,
        first.status,
        {"shown-1": TrialJob("shown-1", "Succeeded", metrics={"val_accuracy": 0.9375})},
        1_000_100.0,
    )
    for status in (first.status, ended.status):
        answer = control_plane.rest.patch(f"{SWEEPS}/shown/status", {"status": status.to_document()})
        assert SweepStatus.read(json.dumps(answer["status"])) == status
    (create,) = (action for action in ended.actions if isinstance(action, CreateJob))
    control_plane.rest.post(JOBS, create.document, {"dryRun": "All", "fieldValidation": "Strict"})
    wait_until(
        lambda: control_plane.kubectl("get", "mpts", check=False).returncode == 0, "kubectl knows the short name"
    )
    head, row = control_plane.kubectl("get", "mpts", "shown").stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "TRIALS", "RUNNING", "BEST", "AGE"]
    assert row.split()[:5] == ["shown", "Running", "1/4", "0", "0.9375"]


def test_a_thousand_trials_are_stored(control_plane: ControlPlane) -> None:
    stored = control_plane.rest.post(SWEEPS, named("large", trials={"max": 1000, "parallel": 1000}))
    sweep = MPTrainingSweep.parse_document(stored)
    status = plan(sweep, None, {}, 1_000_000.0).status
    jobs = {
        trial.job: TrialJob(trial.job, "Succeeded", metrics={"val_accuracy": trial.number / 1001})
        for trial in status.trials or ()
    }
    status = plan(sweep, status, jobs, 1_000_100.0).status
    answer = control_plane.rest.patch(f"{SWEEPS}/large/status", {"status": status.to_document()})
    assert len(answer["status"]["trials"]) == 1000
    assert answer["status"]["best"]["number"] == 1000
