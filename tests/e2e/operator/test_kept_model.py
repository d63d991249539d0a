"""A job without output.uri after its training: its status says that a machine waits for somebody to fetch the model."""

from __future__ import annotations

from typing import Any

import pytest

import mptraining
from mptraining_api.events import Finished
from tests.testbed import Exit, Run

UNTIL = "2099-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("hand_over", "message"),
    [("Fetched", "its model was fetched from worker 0"), ("NotFetched", "its model was not fetched in time")],
)
def test_the_status_names_the_wait_its_end_and_what_became_of_the_model(
    ns: Any, monkeypatch: pytest.MonkeyPatch, hand_over: Any, message: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(ns.control_plane.kubeconfig("kept", ns.rest.token, namespace=ns.namespace)))
    name = f"kept-{hand_over.lower()}"
    ns.create(name, lambda pod: Run(), nodes=1)
    ns.running(name)
    ns.patch(name, {"status": {"progress": {"attempt": 1, "percentComplete": 100, "modelKeptUntil": UNTIL}}}, "status")
    command = f"mptj fetch {name} --namespace {ns.namespace}"
    assert command in ns.waits(name, "ModelWaits", f"wait until {UNTIL} for the model to be fetched")
    ns.wait_for_event(name, "ModelWaits: training is done")
    shown = str(mptraining.attach(name).status())
    assert f"{name}: Running" in shown
    assert command in shown
    end = Finished(
        time=1.0, attempt=1, incarnation="i", worker=0, reason="Succeeded", exit_code=0, message="", hand_over=hand_over
    )
    ns.end(f"{name}-1", Exit(0, message=end.to_json()))
    ns.phase(name, "Succeeded")
    assert message in ns.condition(name, "Succeeded")["message"]
