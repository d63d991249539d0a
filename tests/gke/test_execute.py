"""The script against a fake `gcloud` that records its calls and plays failures."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gke import costs, jobs
from gke.__main__ import down, main, run, up
from gke.execute import Answer, Runner, StepFailed
from gke.plan import Command, teardown
from gke.pools import POOLS
from gke.settings import Settings
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob

SETTINGS = Settings("my-project-1")
OURS = {"mptraining-gke": "mptraining-try"}
NOT_FOUND = "ERROR: (gcloud) ResponseError: code=404, message=Not found: projects/my-project-1."


class Cloud:
    """What a project has; commands change it. `fails` maps a word of a command to errors that it prints in turn."""

    def __init__(self) -> None:
        self.calls: list[Command] = []
        self.labels: dict[str, dict[str, str]] = {}
        self.fails: dict[str, list[str]] = {}
        self.waited: list[float] = []
        self.zone = SETTINGS.zone

    def __call__(self, command: Command) -> Answer:
        self.calls.append(command)
        line = shlex.join(command)
        for word, errors in self.fails.items():
            if word in line and errors:
                return Answer(1, "", errors.pop(0))
        words = command[1:]
        name = next((word for word in words[2:] if not word.startswith("-") and word not in VERBS), "")
        if words[:2] == ("projects", "describe"):
            return Answer(0, "123456789\n", "")
        if "list" in words:
            ours = [{"name": one, "location": self.zone, "resourceLabels": self.labels[one]} for one in self.labels]
            return Answer(0, json.dumps([one for one in ours if one["name"] == "mptraining-try"]), "")
        if "describe" in words:
            here = "clusters" not in words or f"--location={self.zone}" in words
            if not here or name not in self.labels:
                return Answer(1, "", NOT_FOUND)
            found: dict[str, Any] = {
                "resourceLabels": self.labels[name],
                "labels": self.labels[name],
                "location": "US-CENTRAL1",
            }
            return Answer(0, json.dumps({**found, "config": found}), "")
        if "update" in words or ("create" in words and command[0] == "gcloud" and "buckets" not in words):
            self.labels[name] = OURS
        elif "create" in words and command[0] == "gcloud":
            self.labels[name] = {}
        elif "delete" in words or "rm" in words:
            del self.labels[name]
        elif "get" in words:
            return Answer(1, "", "Error from server (NotFound): not found")
        return Answer(0, "", "")

    def created(self) -> list[str]:
        return [call[4] for call in self.calls if call[0] == "gcloud" and "create" in call]


VERBS = {"create", "describe", "delete", "update", "add-iam-policy-binding", "rm", "get-credentials"}


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def runner(cloud: Cloud, tmp_path: Path) -> Callable[[], Runner]:
    def begin() -> Runner:
        return Runner(SETTINGS, tmp_path / "journal.json", say=lambda _: None, call=cloud, sleep=cloud.waited.append)

    return begin


def test_a_second_up_creates_nothing(cloud: Cloud, runner: Callable[[], Runner]) -> None:
    up(runner(), POOLS, "chart")
    assert set(cloud.created()) == {"mptraining-try", "t4", "a100", "v5e", "gs://my-project-1-mptraining-try"}
    assert all(labels == OURS for labels in cloud.labels.values())
    cloud.calls.clear()
    up(runner(), POOLS, "chart")
    assert cloud.created() == []


def test_a_run_that_was_stopped_between_a_bucket_and_its_label_continues(
    cloud: Cloud, runner: Callable[[], Runner]
) -> None:
    cloud.fails = {"--update-labels": ["connection reset"]}
    with pytest.raises(StepFailed, match="connection reset"):
        up(runner(), POOLS, "chart")
    up(runner(), POOLS, "chart")
    assert cloud.labels["gs://my-project-1-mptraining-try"] == OURS


def test_what_another_created_is_neither_used_nor_deleted(cloud: Cloud, runner: Callable[[], Runner]) -> None:
    cloud.labels = {"mptraining-try": {"team": "other"}, "gs://my-project-1-mptraining-try": {}}
    with pytest.raises(StepFailed, match=r"has no label mptraining-gke=mptraining-try\. Choose another --name"):
        up(runner(), POOLS, "chart")
    assert not any(runner().delete(step) for step in teardown(SETTINGS, [SETTINGS.zone]))
    assert len(cloud.labels) == 2


def test_down_removes_cluster_and_bucket_and_can_be_repeated(cloud: Cloud, runner: Callable[[], Runner]) -> None:
    up(runner(), POOLS, "chart")
    cloud.labels["gs://another"] = {"team": "other"}
    assert [runner().delete(step) for step in teardown(SETTINGS, [SETTINGS.zone])] == [True, True]
    assert [runner().delete(step) for step in teardown(SETTINGS, [SETTINGS.zone])] == [False, False]
    assert "gs://another" in cloud.labels


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("Insufficient regional quota to satisfy request: resource NVIDIA_A100_GPUS", "quota does not allow it"),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: quota aside", "none of these machines in the zone now"),
        ("PERMISSION_DENIED: Required 'container.clusters.create' permission", "roles/container.admin"),
        (
            "code=403, message=The user does not have access to service account "
            '"1-compute@developer.gserviceaccount.com". Ask an owner to grant you the iam.serviceAccountUser role',
            "roles/iam.serviceAccountUser on the service account of the nodes",
        ),
        ("You do not currently have an active account selected.", "gcloud auth login"),
        ("something new", "ended with 1"),
    ],
)
def test_a_pool_that_fails_is_explained_and_does_not_keep_the_rest(
    cloud: Cloud, runner: Callable[[], Runner], printed: str, said: str
) -> None:
    cloud.fails = {"create a100": [printed]}
    with pytest.raises(StepFailed) as error:
        up(runner(), POOLS, "chart")
    assert said in str(error.value)
    assert str(error.value).startswith("node pool a100: ")
    assert {"t4", "v5e", "gs://my-project-1-mptraining-try"} <= set(cloud.labels)


@pytest.mark.parametrize("labels", [OURS, {"team": "other"}], ids=["ours", "another's"])
def test_an_object_that_appears_meanwhile_is_used_if_it_has_the_label(
    labels: dict[str, str], cloud: Cloud, runner: Callable[[], Runner]
) -> None:
    exists = Answer(1, "", "ERROR: code=409, message=Already exists: projects/p/clusters/mptraining-try.")

    def call(command: Command) -> Answer:
        if "clusters create" in shlex.join(command):
            cloud.labels["mptraining-try"] = labels
            return exists
        return cloud(command)

    begun = runner()
    begun.call = call
    if labels == OURS:
        up(begun, POOLS, "chart")
    else:
        with pytest.raises(StepFailed, match="has no label"):
            up(begun, POOLS, "chart")


OLD_JOURNALS = [
    ["cluster mptraining-try", "bucket gs://my-project-1-mptraining-try"],
    ["cluster mptraining-try in us-central1-a", "bucket gs://my-project-1-mptraining-try in europe-west4"],
]


@pytest.mark.parametrize("journal", OLD_JOURNALS, ids=["without places", "of another place"])
def test_an_old_journal_makes_nothing_ours(
    journal: list[str], cloud: Cloud, runner: Callable[[], Runner], tmp_path: Path
) -> None:
    (tmp_path / "journal.json").write_text(json.dumps(journal))
    cloud.labels = {"mptraining-try": {"team": "other"}, "gs://my-project-1-mptraining-try": {}}
    assert not any(runner().delete(step) for step in teardown(SETTINGS, [SETTINGS.zone]))
    with pytest.raises(StepFailed, match="has no label"):
        up(runner(), POOLS, "chart")
    del cloud.labels["mptraining-try"]
    with pytest.raises(StepFailed, match=r"bucket .*has no label"):
        up(runner(), POOLS, "chart")
    assert cloud.labels["gs://my-project-1-mptraining-try"] == {}


def test_the_journal_has_a_bucket_only_between_its_creation_and_its_label(
    cloud: Cloud, runner: Callable[[], Runner], tmp_path: Path
) -> None:
    cloud.fails = {"buckets create": ["quota"], "--update-labels": ["connection reset"]}
    with pytest.raises(StepFailed, match="quota"):
        up(runner(), POOLS, "chart")
    assert runner().unlabelled == set()
    with pytest.raises(StepFailed, match="connection reset"):
        up(runner(), POOLS, "chart")
    assert runner().unlabelled == {"bucket gs://my-project-1-mptraining-try in us-central1"}
    assert [runner().delete(step) for step in teardown(SETTINGS, [SETTINGS.zone])] == [True, True]
    assert runner().unlabelled == set()
    up(runner(), POOLS, "chart")
    assert runner().unlabelled == set()


def test_down_finds_the_cluster_in_any_zone_and_names_it(
    cloud: Cloud, runner: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "y")
    cloud.zone = "europe-west4-a"
    cloud.labels = {"mptraining-try": OURS, "gs://my-project-1-mptraining-try": OURS}
    with pytest.raises(StepFailed, match="is in europe-west4-a, not only in us-central1-a"):
        down(runner(), "us-central1-a", yes=True)
    with pytest.raises(StepFailed, match="exists in europe-west4-a"):
        up(runner(), POOLS, "chart")
    assert len(cloud.labels) == 2
    assert down(runner(), "", yes=False)
    assert cloud.labels == {}
    assert "cluster mptraining-try in europe-west4-a and gs://" in asked[0]


def test_down_deletes_nothing_while_a_zone_does_not_answer(cloud: Cloud, runner: Callable[[], Runner]) -> None:
    begun = runner()
    begun.call = lambda _: Answer(0, "[]", "WARNING: The following zones did not respond: europe-west4-a")
    with pytest.raises(StepFailed, match="did not respond"):
        down(begun, "", yes=True)


def test_a_busy_cluster_is_waited_for(cloud: Cloud, runner: Callable[[], Runner]) -> None:
    busy = "ERROR: code=400, message=Cluster is running incompatible operation operation-1."
    cloud.fails = {"node-pools create t4": [busy, busy]}
    up(runner(), POOLS, "chart")
    assert cloud.waited == [30.0, 30.0]


def test_run_submits_waits_and_tells_how_each_job_ended(
    cloud: Cloud, runner: Callable[[], Runner], capsys: pytest.CaptureFixture[str]
) -> None:
    pending = {"status": {"phase": "Pending"}}
    done = [{"type": "Finished", "status": "True"}]
    good = {"status": {"phase": "Succeeded", "precision": "mixed_float16", "conditions": done}}
    none = {"type": "Failed", "status": "True", "message": "no machine for 1200 s"}
    bad = {"status": {"phase": "Failed", "conditions": [*done, none]}}
    answers = iter([pending, pending, pending, good, bad, good])

    def call(command: Command) -> Answer:
        return Answer(0, json.dumps(next(answers)), "") if "get" in command else cloud(command)

    begun = runner()
    begun.call = call
    assert not run(begun, POOLS)
    said = capsys.readouterr().out
    assert "t4    Succeeded   policy mixed_float16" in said
    assert "a100  Failed      no machine for 1200 s" in said
    assert cloud.waited == [20.0]
    assert sum("apply" in call for call in cloud.calls) == len(POOLS)


def test_run_that_gives_up_names_the_command_that_ends_the_costs(
    cloud: Cloud, runner: Callable[[], Runner], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1e9])
    monkeypatch.setattr("gke.__main__.time.monotonic", lambda: next(times))
    begun = runner()
    begun.call = lambda command: Answer(0, json.dumps({"status": {"phase": "Running"}}), "")
    assert not run(begun, POOLS[:1])
    printed = capsys.readouterr().out
    assert "try-t4: not ended after 90 minutes" in printed
    assert "python -m gke down --project my-project-1 --name mptraining-try" in printed


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_every_job_has_a_deadline_within_the_time_that_the_costs_count(pool: Any) -> None:
    policy = jobs.document(SETTINGS, pool)["spec"]["runPolicy"]
    assert policy["activeDeadlineSeconds"] == costs.JOB_HOURS * 3600


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_every_job_resolves(pool: Any) -> None:
    resolved = resolve(MPTrainingJob.parse(jobs.document(SETTINGS, pool)), ClusterSettings())
    assert resolved.precision.policy == ("mixed_bfloat16" if pool.name == "v5e" else "mixed_float16")


def test_costs_are_printed_first_and_nothing_is_created_without_a_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `gcloud` on the PATH that records would be called by the first step."""
    record = tmp_path / "calls"
    fake = tmp_path / "gcloud"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(record)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("builtins.input", lambda _: "n")
    images = ["--images", "registry.example/images"]
    assert main(["up", "--project", "my-project-1", *images]) == 1
    assert "US dollars for one job on each" in capsys.readouterr().out
    assert main(["plan", "--project", "my-project-1", "--pools", "t4", *images]) == 0
    printed = capsys.readouterr().out
    assert "gcloud container node-pools create t4" in printed
    assert "1 of GPUS_ALL_REGIONS" in printed
    assert main(["plan", "--project", "my-project-1", *images]) == 0
    assert "2 of GPUS_ALL_REGIONS" in capsys.readouterr().out
    assert main(["plan", "--project", "my-project-1", "--pools", "v5e", *images]) == 0
    assert "GPUS_ALL_REGIONS" not in capsys.readouterr().out
    assert main(["up", "--project", "my-project-1"]) == 2
    assert "--images: is missing" in capsys.readouterr().err
    assert not record.exists()
    assert main(["down", "--project", "my-project-1", "--yes"]) == 1, "its answer is not JSON, so nothing is deleted"


def test_every_pool_has_a_price_with_source_and_date() -> None:
    known = costs.prices()
    assert set(known) == {"cluster", "system", "bucket", *(pool.name for pool in POOLS)}
    assert all(price.source.startswith("https://cloud.google.com/") and price.hourly > 0 for price in known.values())
    assert costs.estimate(POOLS) == pytest.approx(2 * 0.234 + 0.5 * 5.16, abs=0.01)
