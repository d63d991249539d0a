"""Who sees what on a board of a cluster, over a real socket: tokens, rights by namespace, run folders, reviews."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mptraining.board.in_cluster import application
from mptraining.board.in_cluster.jobs import NamespacedJobs, job_id
from mptraining.board.sweeps.shown import cluster_sweep
from tests.client.board.in_cluster.conftest import HOST, RIGHTS, Served, eventually, start
from tests.client.board.in_cluster.fake_kubernetes import OWN_AUDIENCE, FakeKubernetes, job
from tests.operator.sweeps.swept import document

RED, BLUE = job_id("red", "red-job"), job_id("blue", "blue-job")
PATHS = (
    "/", "/api/runs", f"/api/run/{RED}", f"/api/series?run={RED}&name=loss", f"/api/logs/{RED}/1-0.log",
    "/api/job/red/red-job", "/api/live", "/static/main.js", "/nothing", "/api/sweeps",
)  # fmt: skip
Teams = tuple[FakeKubernetes, dict[str, Any]]


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_a_token_is_refused(shared_board: Served, path: str) -> None:
    answer = shared_board.request(path)
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert b"red-job" not in answer.body
    assert "Set-Cookie" not in answer.headers
    # oauth2-proxy may send another scheme beside the token.
    assert shared_board.request(path, headers={"Authorization": "Basic cmVkOg=="}).status == 401
    assert shared_board.request(f"{path}{'&' if '?' in path else '?'}token=red").status == 401


@pytest.mark.parametrize("path", PATHS)
def test_an_expired_or_forged_token_is_refused(shared_board: Served, path: str) -> None:
    answer = shared_board.request(path, "forged")
    assert answer.status == 401
    assert b"red-job" not in answer.body


def test_a_user_sees_the_jobs_of_the_own_namespace_alone(shared_board: Served) -> None:
    assert shared_board.names("red") == {"red/red-job"}
    assert shared_board.names("blue") == {"blue/blue-job"}
    for mine, other, team in ((RED, BLUE, "red"), (BLUE, RED, "blue")):
        assert shared_board.get(f"/api/run/{mine}", team)["run"]["name"] == f"{team}-job"
        drawn = shared_board.get(f"/api/series?run={mine}&name=loss", team)
        assert len(drawn["series"][0]["y"]) == 20
        assert shared_board.get(f"/api/logs/{mine}/1-0.log", team)["text"] == f"output of {team}\n"
        for path in (
            f"/api/run/{other}",
            f"/api/series?run={other}&name=loss",
            f"/api/series?run={mine}&run={other}&name=loss",
            f"/api/logs/{other}/1-0.log",
        ):
            answer = shared_board.request(path, team)
            assert (answer.status, json.loads(answer.body)) == (404, {"error": f"no run {other}"}), path


def test_a_token_without_rights_in_a_namespace_is_refused_there(shared_board: Served) -> None:
    """In the same words whether or not there is such a job."""
    assert shared_board.names("nobody") == set()
    for name in ("red-job", "no-such-job"):
        answer = shared_board.request(f"/api/job/red/{name}", "nobody")
        assert (answer.status, json.loads(answer.body)["error"]) == (
            403,
            "you may not get mptrainingjobs in namespace red",
        )
    assert shared_board.request("/api/job/red/red-job", "blue").status == 403
    assert shared_board.request("/api/job/red/red-job", "red").status == 200


def test_columns_and_metrics_of_other_namespaces_are_not_told(shared_board: Served) -> None:
    found = shared_board.get("/api/runs", "nobody")
    assert (found["columns"], found["runs"], any(found["series"].values())) == ([], [], False)
    assert found["sources"] == [{"where": "jobs of this cluster", "problem": None}]
    assert "loss" in shared_board.get("/api/runs", "red")["series"]["training"]


def test_the_page_leads_to_sweeps_only_if_the_board_has_them(
    shared_board: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert b"data-sweeps" not in shared_board.request("/", "red").body
    monkeypatch.setattr(NamespacedJobs, "sweeps", lambda self: {})
    assert b"data-sweeps" in shared_board.request("/", "red").body


def test_a_user_sees_the_sweeps_of_the_own_namespace_alone(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever source will have them; the board of a cluster reads no sweeps yet."""
    shown = {}
    for team in ("red", "blue"):
        made = document("digits", trials={"parallel": 1})
        made["metadata"] |= {"namespace": team, "uid": f"uid-{team}", "resourceVersion": "1"}
        # Both name the folder of a run of red.
        made["spec"]["job"] = {**made["spec"]["job"], "output": {"uri": "/runs"}}
        trial = {"number": 1, "job": "digits-1", "state": "Succeeded", "parameters": {"training.seed": 1}}
        made["status"] = {"phase": "Running", "trials": [trial]}
        sweep = cluster_sweep(made, "c", {}, ())
        shown[sweep.id] = sweep
    (red, blue) = shown
    monkeypatch.setattr(NamespacedJobs, "sweeps", lambda self: shown)
    fake, settings = teams
    fake.put(job("red", "digits-1", uri="/runs/trials/1"))
    fake.allow("red", "red", "list mptrainingsweeps")
    fake.allow("blue", "blue", "list mptrainingsweeps")
    with start(fake, **settings) as board:
        assert [each["id"] for each in board.get("/api/sweeps", "red")["sweeps"]] == [red]
        assert [each["id"] for each in board.get("/api/sweeps", "blue")["sweeps"]] == [blue]
        # A right on jobs is none on sweeps.
        assert board.get("/api/sweeps", "nobody")["sweeps"] == []
        assert board.get(f"/api/sweep/{red}", "red")["trials"][0]["run"] == job_id("red", "digits-1")
        assert board.get(f"/api/sweep/{blue}", "blue")["trials"][0]["run"] is None
        for other, team in ((blue, "red"), (red, "blue"), (red, "nobody"), ("none", "red")):
            answer = board.request(f"/api/sweep/{other}", team)
            assert (answer.status, json.loads(answer.body)) == (404, {"error": f"no sweep {other}"})


def test_each_part_of_a_page_needs_its_own_right(teams: Teams) -> None:
    fake, settings = teams
    about = {"metadata": {"name": "red-job-1-0-x", "namespace": "red"}, "status": {"phase": "Running"}}
    event = {
        "metadata": {"name": "e", "namespace": "red"}, "reason": "Pulled", "message": "", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "red-job-1-0-x"},
    }  # fmt: skip
    fake.others = {"pods": [about], "events": [event]}
    fake.tokens["viewer"] = ("viewer", OWN_AUDIENCE)
    fake.allow("viewer", "red", "list mptrainingjobs", "get mptrainingjobs")
    with start(fake, **settings) as board:
        board.wait_for_folder("red")
        page = board.get("/api/job/red/red-job", "viewer")
        assert (page["pods"], page["events"], page["hidden"]) == ([], [], ["pods", "events"])
        assert board.get(f"/api/run/{RED}", "viewer")["logs"] == []
        assert board.request(f"/api/logs/{RED}/1-0.log", "viewer").status == 403
        page = board.get("/api/job/red/red-job", "red")
        assert [each["name"] for each in page["pods"]] == ["red-job-1-0-x"]
        assert ({each["reason"] for each in page["events"]}, page["hidden"]) == ({"Pulled"}, [])
        assert [each["name"] for each in board.get(f"/api/run/{RED}", "red")["logs"]] == ["1-0.log"]


def test_a_right_in_all_namespaces_takes_one_review(teams: Teams) -> None:
    fake, settings = teams
    fake.tokens["admin"] = ("admin", OWN_AUDIENCE)
    fake.allow("admin", "", *RIGHTS)
    with start(fake, **settings) as board:
        assert board.names("admin") == {"red/red-job", "blue/blue-job"}
    assert [kind for kind, _ in fake.reviews] == ["TokenReview", "SubjectAccessReview"]
    assert fake.reviews[1][1]["groups"] == ["people"]


THEFTS = (
    "/runs/../blue/one", "/runs/./one", "/runs//one", "/runs/blue", "/runs/link", "/runs/deep/link/one",
    "/volumes/blue/one", "/", "/etc", "file:///runs/one", "gs://blue-runs/one", "gs://all/blue/one", "runs/one",
)  # fmt: skip


def test_no_output_uri_leads_to_the_run_folder_of_another_namespace(teams: Teams, tmp_path: Path) -> None:
    fake, settings = teams
    (tmp_path / "red" / "deep").mkdir()
    for link in ("blue", "deep/link"):
        (tmp_path / "red" / link).symlink_to(tmp_path / "blue")
    (tmp_path / "red" / "link").symlink_to(tmp_path / "blue" / "one")
    folders = [
        *settings["runFolders"],
        {"namespace": "blue", "folder": "gs://blue-runs"},
        {"namespace": "red", "folder": "gs://all"},
        {"folder": "gs://all/{namespace}"},
    ]
    for number, uri in enumerate(THEFTS):
        fake.put(job("red", f"thief-{number}", uri=uri))
    with start(fake, runFolders=folders) as board:
        board.wait_for_folder("red")
        # Its folder is read after those of the jobs before it.
        fake.put(job("red", "later", uri="/runs/one"))
        eventually(lambda: board.request(f"/api/logs/{job_id('red', 'later')}/1-0.log", "red").status == 200)
        for number, uri in enumerate(THEFTS):
            thief = job_id("red", f"thief-{number}")
            assert board.get(f"/api/run/{thief}", "red")["run"]["folder"] is None, uri
            assert board.get(f"/api/series?run={thief}&name=loss", "red")["series"] == [], uri
            assert board.request(f"/api/logs/{thief}/1-0.log", "red").status == 404, uri


def test_a_link_in_a_run_folder_is_not_followed(teams: Teams, tmp_path: Path) -> None:
    fake, settings = teams
    mine = tmp_path / "red" / "one"
    (mine / "logs" / "stolen.log").symlink_to(tmp_path / "blue" / "one" / "logs" / "1-0.log")
    (mine / "quarantine").symlink_to(tmp_path / "blue" / "one")
    with start(fake, **settings) as board:
        board.wait_for_folder("red")
        assert [each["name"] for each in board.get(f"/api/run/{RED}", "red")["logs"]] == ["1-0.log"]
        for name in ("stolen.log", "..%2f..%2f..%2fblue%2fone%2flogs%2f1-0.log", "%2fetc%2fpasswd"):
            assert board.request(f"/api/logs/{RED}/{name}", "red").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_get_is_the_only_method(shared_board: Served, method: str) -> None:
    before = shared_board.fake.count
    for path in ("/", "/api/runs", "/api/job/red/red-job"):
        assert shared_board.request(path, "red", method=method).status == 405
    assert shared_board.fake.count == before, "such a request costs the API server nothing"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost", f"{HOST}.evil", "", "10.0.0.7:8666"])
def test_a_name_that_is_not_of_the_settings_is_refused(shared_board: Served, host: str) -> None:
    for path in ("/api/runs", "/"):
        assert shared_board.request(path, "red", headers={"Host": host}).status == 403
    assert shared_board.request("/api/runs", "red", headers={"Host": f"{HOST.upper()}:443"}).status == 200
    # The kubelet asks by the address of the pod, and learns nothing.
    assert shared_board.request("/healthz", headers={"Host": host}).body == b"ok\n"


def test_a_token_of_another_audience_is_refused(teams: Teams) -> None:
    fake, settings = teams
    fake.tokens |= {"for-vault": ("red", "vault"), "for-board": ("red", "board")}
    with start(fake, **settings) as board:
        assert board.request("/api/runs", "for-vault").status == 401
        assert board.request("/api/runs", "for-board").status == 401
        assert board.request("/api/runs", "red").status == 200
    with start(fake, **settings, audiences=["board"]) as board:
        assert board.request("/api/runs", "for-board").status == 200
        for token in ("for-vault", "red"):
            assert board.request("/api/runs", token).status == 401


def test_without_the_api_server_nothing_is_shown(board: Served) -> None:
    assert board.names("red") == {"red/red-job"}
    board.fake.away = True
    board.clock.now += 31
    for path in ("/", "/api/runs", f"/api/run/{RED}", "/api/job/red/red-job"):
        answer = board.request(path, "red")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        assert b"red-job" not in answer.body
    board.fake.away = False
    assert board.names("red") == {"red/red-job"}


def test_a_review_is_believed_for_its_time_alone(board: Served) -> None:
    assert board.names("red") == {"red/red-job"}
    before = board.fake.count
    assert board.names("red") == {"red/red-job"}
    assert board.fake.count == before
    board.fake.rights -= {each for each in board.fake.rights if each[0] == "red"}
    board.clock.now += 29
    assert board.names("red") == {"red/red-job"}
    board.clock.now += 2
    assert board.names("red") == set()
    del board.fake.tokens["red"]
    board.clock.now += 31
    assert board.request("/api/runs", "red").status == 401
    # A refusal is believed for less time.
    board.fake.tokens["red"] = ("red", OWN_AUDIENCE)
    board.clock.now += 5
    assert board.request("/api/runs", "red").status == 200


def test_a_stream_ends_with_the_validity_of_its_token(board: Served) -> None:
    live = board.stream("red")
    assert next(live) == ("connected", None)
    del board.fake.tokens["red"]
    board.clock.now += 31
    begin = time.monotonic()
    kind, told = next(live)
    assert (kind, list(live)) == ("denied", [])
    assert "sign in again" in told["error"]
    assert time.monotonic() - begin < 10


def test_the_streams_of_users_are_limited(board: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_STREAMS_OF_USER", 2)
    monkeypatch.setattr(application, "MOST_STREAMS", 3)
    red = [board.stream("red"), board.stream("red")]
    for each in red:
        assert next(each)[0] == "connected"
    refused = board.request("/api/live", "red")
    assert (refused.status, b"close one" in refused.body) == (429, True)
    blue = board.stream("blue")
    assert next(blue)[0] == "connected"
    assert board.request("/api/live", "nobody").status == 503
    assert board.request("/healthz").status == 200
    # A page that is closed makes room.
    red[0].close()
    eventually(lambda: _connects(board, "red"))
    for each in (red[1], blue):
        each.close()


def _connects(board: Served, token: str) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", board.port, timeout=20)) as connection:
        connection.request("GET", "/api/live", headers={"Host": HOST, "Authorization": f"Bearer {token}"})
        return connection.getresponse().status == 200


def test_a_stream_tells_of_the_jobs_that_its_user_may_list(board: Served) -> None:
    live = board.stream("red")
    next(live)
    board.fake.put(job("blue", "secret"))
    board.fake.put(job("red", "mine"))
    mine, seen = job_id("red", "mine"), set[str]()

    def until(id: str) -> None:
        for kind, told in live:
            assert kind == "runs"
            seen.update(told["changed"])
            if id in told["changed"]:
                return

    until(mine)
    # A deleted job, too, and all jobs when the right ends.
    board.fake.delete("red", "mine")
    until(mine)
    board.fake.rights -= {("red", "list", "mptrainingjobs", "red")}
    board.clock.now += 31
    until(RED)
    assert seen <= {RED, mine}
    assert board.names("red") == set()


def test_the_token_of_a_proxy_is_taken(shared_board: Served) -> None:
    """oauth2-proxy sends X-Forwarded-Access-Token, and Basic in Authorization; Authorization: Bearer comes first."""
    assert shared_board.request("/api/runs", headers={"X-Forwarded-Access-Token": "red"}).status == 200
    both = {"X-Forwarded-Access-Token": "red", "Authorization": "Basic cmVkOg=="}
    assert shared_board.request("/api/runs", headers=both).status == 200
    assert shared_board.request("/api/runs", headers=both | {"Authorization": "Bearer forged"}).status == 401


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/main.js", "/healthz"])
def test_every_answer_has_the_headers(shared_board: Served, path: str) -> None:
    for token in ("red", "forged"):
        found = shared_board.request(path, token).headers
        assert found["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert (found["X-Frame-Options"], found["X-Content-Type-Options"]) == ("DENY", "nosniff")
        assert "Access-Control-Allow-Origin" not in found
