"""The progress endpoint with a real API server behind it: real tokens, reviews, Secret and server-side apply."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from mptraining_api import events
from mptraining_api.kubernetes_api import ApiProblem
from mptraining_operator.jobs.resources import names
from mptraining_operator.progress.auth import JobForProgress, TokenReviewer, report_path
from mptraining_operator.progress.certificate import Certificate, dns_names, ensure_certificate, issue_certificate
from mptraining_operator.progress.server import ProgressServer
from mptraining_operator.progress.writer import ProgressWriter
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.values import Key
from mptraining_trainer.report.progress_reporter import Reporter
from tests.testbed import ControlPlane, Refused
from tests.testbed.kubernetes.access import wait_until

SPEC = {
    "accelerator": {"type": "cpu"},
    "program": {"application": {"name": "mlp", "classes": 10}},
    "data": {"train": ["gs://bucket/train-*.tfrecord"]},
}
SECRET = "mptraining-progress"


class World:
    """One job with one worker's pod, and the endpoint that it reports to."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.rest = control_plane.rest
        self.namespace = namespace
        self.key = Key(namespace, "flowers")
        self.cluster = Cluster(control_plane.client())
        self.uid = self.make_job()
        self.pod = self.make_pod("flowers-1-0-abcde")
        self.writer = ProgressWriter(self.write, time.time, 0.2, 100)
        self.certificate = self.ensure()
        # Caches expire at once, so that each test gets the API server's own answer.
        reviewer = TokenReviewer(self.cluster.review_token, time.time, 0.001)
        self.server = ProgressServer(0, self.lookup, reviewer, self.writer.offer, self.certificate, host="127.0.0.1")
        self.attempt = 1

    def ensure(self) -> Certificate:
        made = issue_certificate(dns_names("localhost", self.namespace), time.time())
        return ensure_certificate(self.cluster, self.namespace, SECRET, lambda: made)

    def make_job(self) -> str:
        body = {
            "apiVersion": "mptraining.dev/v1alpha1",
            "kind": "MPTrainingJob",
            "metadata": {"name": "flowers"},
            "spec": SPEC,
        }
        made = self.rest.post(f"/apis/mptraining.dev/v1alpha1/namespaces/{self.namespace}/mptrainingjobs", body)
        return str(made["metadata"]["uid"])

    def make_pod(self, name: str, namespace: str | None = None) -> tuple[str, str]:
        body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "trainer", "image": "none"}]}}
        made = self.rest.post(f"/api/v1/namespaces/{namespace or self.namespace}/pods", body)
        return name, str(made["metadata"]["uid"])

    def lookup(self, key: Key) -> JobForProgress | None:
        return JobForProgress(self.uid, self.attempt, {self.pod[1]: 0}) if key == self.key else None

    def write(self, key: Key, uid: str, progress: dict[str, Any]) -> object:
        return self.cluster.write_progress(key.namespace, key.name, uid, progress)

    def token(self, **changes: Any) -> str:
        options: dict[str, Any] = {"audiences": [names.audience(self.namespace, self.uid)], "pod": self.pod}
        return self.control_plane.token(self.namespace, "default", **{**options, **changes})

    def job(self) -> dict[str, Any]:
        found = self.rest.get(f"/apis/mptraining.dev/v1alpha1/namespaces/{self.namespace}/mptrainingjobs/flowers")
        return dict(found)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}{report_path(self.key)}"

    def post(self, token: str, tmp_path: Path) -> requests.Response:
        trusted = tmp_path / "certificate.pem"
        trusted.write_bytes(self.certificate.cert_pem)
        with requests.Session() as session:
            session.trust_env = False
            return session.post(
                self.url,
                data=report(1).to_json(),
                headers={"Authorization": f"Bearer {token}"},
                verify=str(trusted),
                timeout=240,
            )


def report(step: int, **more: Any) -> events.Progress:
    fields = {"total_steps": 100, "metrics": {"loss": 0.5}, **more}
    return events.Progress(time=1.0, attempt=1, incarnation="pod", worker=0, step=step, epoch=1, **fields)


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> Iterator[World]:
    world = World(control_plane, namespace)
    world.writer.start()
    world.server.start()
    yield world
    world.server.stop()
    world.writer.stop()


def test_a_worker_s_report_becomes_the_job_s_status(world: World, tmp_path: Path) -> None:
    # Another manager owns this part of the status.
    mine = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingJob", "status": {"phase": "Running"}}
    job_path = f"/apis/mptraining.dev/v1alpha1/namespaces/{world.namespace}/mptrainingjobs/flowers/status"
    world.rest.patch(job_path, mine)
    token, said = tmp_path / "token", list[str]()
    token.write_text(world.token())

    def notice(topic: str, message: str, *, level: str = "Info") -> None:
        said.append(message)

    reporter = Reporter(world.url, token, world.certificate.cert_pem.decode(), notice, interval=0.01)
    reporter.on_event(report(1, loss_scale=32768.0))
    wait_until(lambda: world.job()["status"].get("progress", {}).get("step") == 1, "step 1")
    reporter.on_event(report(100))
    finished = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason="Succeeded", exit_code=0, message="", step=100
    )
    reporter.on_event(finished)
    reporter.close()
    wait_until(lambda: world.job()["status"]["progress"].get("estimatedRemainingSeconds") == 0, "the end")
    job = world.job()
    progress = job["status"]["progress"]
    assert job["status"]["phase"] == "Running"
    assert (progress["step"], progress["percentComplete"], progress["epoch"]) == (100, 100, 1)
    assert progress["metrics"] == [{"name": "loss", "value": "0.5"}]
    # Fields that the newest report lacks are gone, because the manager owned them.
    assert "lossScale" not in progress
    managers = {each["manager"]: each for each in job["metadata"]["managedFields"]}
    assert set(managers["mptraining-progress"]["fieldsV1"]["f:status"]) == {"f:progress"}
    assert managers["mptraining-progress"]["subresource"] == "status"
    assert said == []


def test_a_token_of_another_audience_pod_or_namespace_is_refused(world: World, tmp_path: Path) -> None:
    elsewhere = world.control_plane.namespace(f"{world.namespace}-elsewhere")
    # A namespace's accounts can request tokens for any audience.
    audience = names.audience(world.namespace, world.uid)
    other = [names.audience(world.namespace, "uid-of-another")]
    for status, token in (
        (401, world.token(audiences=[])),
        (401, world.token(audiences=other)),
        (401, world.token(pod=None)),
        (403, world.token(pod=world.make_pod("notebook"))),
        (403, world.token(pod=world.make_pod("flowers-1-0-zzzzz"))),
        (401, world.control_plane.token(elsewhere, "default", audiences=[audience])),
        (403, world.control_plane.token(
            elsewhere, "default", audiences=[audience], pod=world.make_pod("flowers-1-0-abcde", elsewhere)
        )),
    ):  # fmt: skip
        assert world.post(token, tmp_path).status_code == status


def test_a_token_of_a_deleted_pod_is_refused(world: World, tmp_path: Path) -> None:
    shown, kept = world.token(), world.token()
    assert shown != kept
    assert world.post(shown, tmp_path).status_code == 202
    world.rest.delete(f"/api/v1/namespaces/{world.namespace}/pods/{world.pod[0]}", {"gracePeriodSeconds": 0})
    # The API server's own cache accepts it for ten seconds more; the operator's check of the pods does not.
    world.pod = "flowers-1-0-new", "another uid"
    assert world.post(shown, tmp_path).status_code == 403
    wait_until(lambda: world.post(kept, tmp_path).status_code == 401, "refused by the API server")


def test_a_write_for_a_job_that_was_created_again_changes_nothing(world: World) -> None:
    with pytest.raises(ApiProblem):
        world.cluster.write_progress(world.namespace, "flowers", "another-uid", {"step": 1})
    assert "progress" not in world.job().get("status", {})


def test_replicas_share_a_secret_that_cannot_be_edited(world: World) -> None:
    path = f"/api/v1/namespaces/{world.namespace}/secrets/{SECRET}"
    assert world.ensure() == world.certificate
    with pytest.raises(Refused, match="field is immutable"):
        world.rest.patch(path, {"data": {"tls.crt": "AAAA"}})
    # An administrator replaces the certificate.
    world.rest.delete(path)
    assert world.ensure() != world.certificate
