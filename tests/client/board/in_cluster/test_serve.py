"""HTTPS of the board in a cluster, and the jobs and run folders that it reads again."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mptraining.board.in_cluster import job_watch
from mptraining.board.in_cluster.files import RunBucketFiles
from mptraining.board.in_cluster.job_watch import JobWatch
from mptraining.board.in_cluster.jobs import (
    FAILED_SECONDS,
    READINGS_AFTER_END,
    UNWATCHED_SECONDS,
    WATCHED_SECONDS,
    RunFolder,
    job_id,
)
from mptraining.board.in_cluster.serve import Certificate
from mptraining.board.listing import MemoryFiles
from mptraining.board.run_reader import RunReader
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_operator.progress.certificate import issue_certificate
from mptraining_records.storage import storage
from tests.client.board.in_cluster.conftest import HOST, RIGHTS, Served, eventually, start
from tests.client.board.in_cluster.fake_kubernetes import OWN_AUDIENCE, FakeKubernetes, job, served
from tests.testbed.board_runs import write_run


def write_certificate(folder: Path) -> bytes:
    """Write a new certificate as the kubelet mounts a Secret; return it in DER."""
    issued = issue_certificate((HOST,), time.time())
    (folder / "tls.crt").write_bytes(issued.cert_pem)
    (folder / "tls.key").write_bytes(issued.key_pem)
    return ssl.PEM_cert_to_DER_cert(issued.cert_pem.decode())


def presented(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def test_with_a_certificate_the_board_speaks_https_alone(tmp_path: Path) -> None:
    first = write_certificate(tmp_path)
    fake = FakeKubernetes(tokens={"red": ("red", OWN_AUDIENCE)})
    with start(fake, certificate=str(tmp_path)) as board:
        assert presented(board.port) == first
        context = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
        # The certificate is for the name of the board, and the test connects to its address.
        context.check_hostname = False
        with closing(http.client.HTTPSConnection("127.0.0.1", board.port, context=context)) as connection:
            connection.request("GET", "/api/runs", headers={"Host": HOST, "Authorization": "Bearer red"})
            assert json.loads(connection.getresponse().read())["runs"] == []
        with pytest.raises((http.client.HTTPException, OSError)):
            board.request("/healthz")


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_certificate(tmp_path)
    certificate = Certificate(tmp_path)
    assert not certificate.reload()
    whole = (tmp_path / "tls.crt").read_text()
    (tmp_path / "tls.crt").write_text("half of a")
    assert not certificate.reload()
    assert "cannot be used" in caplog.text
    (tmp_path / "tls.crt").write_text(whole)
    assert not certificate.reload()
    write_certificate(tmp_path)
    assert certificate.reload()
    (tmp_path / "tls.key").unlink()
    assert not certificate.reload()
    with pytest.raises(InvalidSpec, match=r"tls\.crt and tls\.key"):
        Certificate(tmp_path)


def test_a_watch_that_fails_is_reported_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeKubernetes()
    fake.put(job("red", "one"))
    with served(fake) as server:

        def keep(document: dict[str, Any]) -> str:
            if document["metadata"]["name"] == "broken":
                raise ValueError("unexpected")
            return str(document["metadata"]["uid"])

        fake.put(job("red", "broken"))
        watch = JobWatch(server.api, ["red", "blue"], keep, monotonic=time.monotonic)
        fake.gone = True
        watch.start()
        eventually(lambda: watch.listed)
        assert dict(watch.jobs()) == {("red", "one"): "red-one"}
        # The version is too old for a watch: the jobs are listed again.
        fake.put(job("red", "two"))
        eventually(lambda: len(watch.jobs()) == 2)
        fake.gone = False
        fake.put(job("red", "one", uid="new"))
        eventually(lambda: watch.jobs()["red", "one"] == "new")
        assert watch.problem is None
        fake.forbidden = True
        fake.cut()
        eventually(lambda: "may not list" in str(watch.problem))
        eventually(lambda: "the jobs of red cannot be read" in caplog.text)
        assert len(watch.jobs()) == 2, "the last rows stay"
        fake.forbidden = False
        eventually(lambda: watch.problem is None)
        watch.stop()
    assert "the job red/broken cannot be shown" in caplog.text


def test_a_namespace_that_may_not_be_listed_hides_no_other() -> None:
    fake = FakeKubernetes(tokens={"red": ("red", OWN_AUDIENCE)}, refused={"blue"})
    fake.allow("red", "red", *RIGHTS)
    fake.put(job("red", "one"))
    # `start` waits until the board is ready.
    with start(fake, namespaces=["red", "blue"]) as board:
        assert board.request("/readyz").status == 200
        assert board.names("red") == {"red/one"}
        (source,) = board.get("/api/runs", "red")["sources"]
        assert "cannot be read" in source["problem"]


def test_a_board_that_can_list_no_namespace_is_not_ready() -> None:
    fake = FakeKubernetes(refused={"red", "blue"})
    with served(fake) as server:
        watch = JobWatch(server.api, ["red", "blue"], str, monotonic=time.monotonic)
        watch.start()
        eventually(lambda: watch.problem)
        assert not watch.listed
        fake.refused.clear()
        eventually(lambda: watch.listed)
        watch.stop()


def test_watches_that_end_at_once_are_begun_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "_FIRST_PAUSE", 60.0)
    fake = FakeKubernetes(brief=True)
    with served(fake) as server:
        watch = JobWatch(server.api, ["red"], str, monotonic=time.monotonic)
        watch.start()
        eventually(lambda: fake.watches)
        time.sleep(0.1)
        watch.stop()
    assert fake.watches == 1


def run_folder(**state: Any) -> RunFolder:
    return RunFolder(("uid", "gs://a/b"), RunReader(MemoryFiles("gs://a/b", {}), "b", id="b"), **state)


@pytest.mark.parametrize(
    ("state", "finished", "watched", "after", "due"),
    [
        ({}, False, False, 0.0, True),
        ({"read_at": 0.0}, False, True, WATCHED_SECONDS - 1, False),
        ({"read_at": 0.0}, False, True, WATCHED_SECONDS, True),
        ({"read_at": 0.0}, False, False, WATCHED_SECONDS, False),
        ({"read_at": 0.0}, False, False, UNWATCHED_SECONDS, True),
        # The end of a job is read at once.
        ({"read_at": 0.0}, True, False, 0.1, True),
        ({"read_at": 0.0, "readings_after_end": 1}, True, True, 0.1, False),
        ({"read_at": 0.0, "readings_after_end": 1}, True, True, WATCHED_SECONDS, True),
        ({"read_at": 0.0, "readings_after_end": READINGS_AFTER_END}, True, True, 1e6, False),
        ({"read_at": 0.0, "failed": True}, False, True, WATCHED_SECONDS, False),
        ({"read_at": 0.0, "failed": True}, False, True, FAILED_SECONDS, True),
    ],
)
def test_a_run_folder_is_read_when_something_may_have_changed(
    state: dict[str, Any], finished: bool, watched: bool, after: float, due: bool
) -> None:
    assert run_folder(**state).is_due(finished, after, watched=watched) is due


def test_a_run_with_a_result_is_not_read_again_after_the_end_of_its_job() -> None:
    folder = run_folder(read_at=0.0, readings_after_end=1)
    folder.reader.result = {"exitCode": 0}
    assert not folder.is_due(True, 1e6, watched=True)


def test_a_reading_that_failed_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    folder = run_folder()
    for now in (1.0, 2.0):
        folder.reading = Future()
        assert not folder.ended(False, now)
        folder.reading.set_exception(InvalidData("gs://a/b", "no permission"))
        assert not folder.ended(False, now)
        assert (folder.failed, folder.read_at, folder.reading) == (True, now, None)
    folder.reading = Future()
    folder.reading.set_exception(InvalidData("gs://a/b", "no permission"))
    folder.ended(True, 3.0)
    assert folder.readings_after_end == 0, "it is tried again"
    assert caplog.text.count("no permission") == 1


def test_the_run_folder_of_a_bucket_is_read_by_its_parts(bucket: str, tmp_path: Path) -> None:
    write_run(tmp_path, 0, 20, random.Random(0))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "1-0.log").write_text("output\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.npz").write_text("large")
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    for each in files:
        storage.write(f"{bucket}/runs/red/one/{each.relative_to(tmp_path)}", each.read_bytes())
    storage.write(f"{bucket}/runs/red/one-more/job.json", b"{}")
    listed = RunBucketFiles(f"{bucket}/runs/red/one").list()
    assert set(listed) == {str(each.relative_to(tmp_path)) for each in files if each.parent.name != "model"}

    fake = FakeKubernetes(tokens={"red": ("red", OWN_AUDIENCE)})
    fake.allow("red", "red", *RIGHTS)
    # Without output.uri: the operator's default.
    fake.put(job("red", "one"))
    with start(fake, defaultOutput=f"{bucket}/runs") as board:
        board.wait_for_folder("red")
        assert curve(board, job_id("red", "one")) == 20


def curve(board: Served, id: str) -> int:
    return len(board.get(f"/api/series?run={id}&name=loss", "red")["series"][0]["y"])
