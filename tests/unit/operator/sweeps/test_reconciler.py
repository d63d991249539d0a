"""A sweep from its creation to its end, with an API server in memory: what is written, in which order, how often."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, SWEEPS, ApiProblem
from mptraining_operator.jobs.watch import parse as parse_jobs
from mptraining_operator.runtime.values import Key
from mptraining_operator.sweeps.cache import StoredSweep
from tests.fakes import Clock
from tests.unit.operator.sweeps.swept import JOB, Bench, document


@pytest.fixture
def bench(api: Any, clock: Clock) -> Bench:
    """A sweep over three seeds, one after the other."""
    return Bench(api, clock, document())


def test_a_sweep_runs_its_trials_one_after_the_other_to_its_end(bench: Bench) -> None:
    bench.run()
    assert bench.made() == ["lr-1"]
    job = bench.api.find(JOBS, "team", "lr-1")
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("MPTrainingSweep", "lr", True)
    assert owner["uid"] == bench.api.find(SWEEPS, "team", "lr")["metadata"]["uid"]
    assert job["spec"]["training"]["seed"] == 1
    assert job["spec"]["output"] == {"uri": "gs://bucket/sweep/trials/1"}
    for number, loss in enumerate((0.5, 0.25, 0.75), start=1):
        bench.job(f"lr-{number}", "Running")
        bench.run(5.0)
        bench.succeed(f"lr-{number}", loss)
    status = bench.status()
    assert bench.made() == ["lr-1", "lr-2", "lr-3"]
    assert (status["phase"], status["completed"]) == ("Succeeded", "3/3")
    assert status["best"] == {"number": 2, "objective": 0.25, "parameters": {"training.seed": 2}}
    assert {each["type"] for each in status["conditions"] if each["status"] == "True"} == {
        *("Complete", "Finished"),
    }
    assert ("lr", "SearchExhausted") in bench.said


def test_a_job_that_exists_is_not_created_again_although_the_cache_lacks_it(bench: Bench) -> None:
    bench.run()
    uid = bench.api.find(JOBS, "team", "lr-1")["metadata"]["uid"]
    bench.jobs._forget_job(Key("team", "lr-1"), uid, 0)
    bench.restarted()
    bench.run(5.0)
    assert bench.api.find(JOBS, "team", "lr-1")["metadata"]["uid"] == uid
    assert bench.states() == ["Running"]


def test_a_running_trial_whose_job_the_cache_lacks_is_read_before_it_counts_as_deleted(bench: Bench) -> None:
    bench.run()
    bench.job("lr-1", "Running")
    bench.run(5.0)
    assert bench.states() == ["Running"]
    raw = bench.api.find(JOBS, "team", "lr-1")
    bench.jobs._forget_job(Key("team", "lr-1"), raw["metadata"]["uid"], 0)
    bench.queue.add(Key("team", "lr"))
    bench.run(1.0)
    assert bench.states() == ["Running"]
    del bench.api.objects[("mptrainingjobs", "team", "lr-1")]
    bench.jobs.remove_job(Key("team", "lr-1"), raw["metadata"]["uid"], 10**6)
    bench.run(5.0)
    assert bench.states() == ["Failed", "Running"]
    assert bench.status()["trials"][0]["message"] == "its job was deleted"


def test_a_failure_of_a_machine_is_no_trial(bench: Bench) -> None:
    bench.run()
    bench.job("lr-1", "Failed", "NodeLost")
    bench.run(5.0)
    (trial,) = bench.status()["trials"]
    assert (trial["number"], trial["retries"], trial["parameters"]) == (1, 1, {"training.seed": 1})
    assert bench.made() == ["lr-1", trial["job"]]
    bench.succeed(trial["job"], 0.5)
    assert bench.states()[0] == "Succeeded"


def test_a_refused_job_is_tried_again_and_its_trial_says_why(bench: Bench) -> None:
    quota = ApiProblem(403, "Forbidden", "exceeded quota: jobs, requested: count/mptrainingjobs.mptraining.dev=1")
    bench.api.refuse("create", JOBS, quota, times=2)
    bench.run(1.5)
    assert bench.states() == ["Proposed"]
    assert bench.status()["trials"][0]["message"] == quota.message
    bench.run(20.0)
    assert bench.made() == ["lr-1"] * 3
    assert bench.states() == ["Running"]
    assert [reason for _, reason in bench.said].count("TrialNotCreated") == 1


def test_a_job_that_the_api_server_calls_invalid_fails_its_trial(api: Any, clock: Clock) -> None:
    bench = Bench(api, clock, document(trials={"parallel": 1, "maxFailed": 3}))
    api.refuse("create", JOBS, ApiProblem(422, "Invalid", "spec.workers: too many", causes=("FieldValueInvalid",)))
    bench.run(5.0)
    assert bench.states()[0] == "Failed"
    assert bench.status()["trials"][0]["message"] == "spec.workers: too many"
    assert bench.made()[:2] == ["lr-1", "lr-2"]


def test_a_foreign_job_of_a_trials_name_is_left_alone(api: Any, clock: Clock) -> None:
    foreign = {"metadata": {"name": "lr-1", "namespace": "team"}, "spec": JOB}
    bench = Bench(api, clock, document())
    bench.jobs.put_job(parse_jobs.job(api.put(JOBS, foreign)))
    bench.run(5.0)
    assert bench.states() == ["Proposed"]
    assert "it exists already, without a controller" in bench.status()["trials"][0]["message"]
    bench.change(spec={**document()["spec"], "stop": {"target": 0.0}})
    bench.run(5.0)
    assert api.find(JOBS, "team", "lr-1")["spec"] == JOB


def test_the_status_is_written_about_once_a_second(api: Any, clock: Clock) -> None:
    many = {"parameters": [{"path": "training.seed", "values": list(range(40))}], "trials": {"parallel": 10}}
    bench = Bench(api, clock, document(**many))
    bench.run()
    began, before = clock.now, bench.writes()
    for number in range(1, 31):
        bench.job(f"lr-{number}", "Running")
        bench.run(0.1)
        bench.job(f"lr-{number}", "Succeeded", metrics={"loss": 1 / number})
        bench.run(0.2)
        while f"lr-{number + 1}" not in bench.made():
            bench.run(0.1)
    assert bench.writes() - before <= (clock.now - began) + 3


def test_the_next_trial_starts_at_once_when_no_write_was_made_lately(bench: Bench) -> None:
    bench.run(10.0)
    bench.job("lr-1", "Succeeded", metrics={"loss": 0.5})
    bench.run(0.1)
    assert bench.made() == ["lr-1", "lr-2"]
    assert len(bench.gaps) == 1


def test_after_a_conflict_the_sweep_is_read_and_planned_again(bench: Bench) -> None:
    # Another client changes the sweep, which the watch has not reported yet.
    raw = bench.api.find(SWEEPS, "team", "lr")
    bench.api.put(SWEEPS, {**raw, "metadata": {**raw["metadata"], "annotations": {"a": "b"}}})
    bench.run(5.0)
    assert [call[:2] for call in bench.api.written()][:3] == [*[("patch", SWEEPS.plural)] * 2, ("create", JOBS.plural)]
    assert bench.made() == ["lr-1"]
    assert bench.states() == ["Running"]


def test_a_suspended_sweep_suspends_its_jobs_and_starts_none_until_it_resumes(bench: Bench) -> None:
    bench.run()
    bench.job("lr-1", "Running")
    bench.run(5.0)
    bench.edit(runPolicy={"suspend": True})
    bench.run(5.0)
    assert bench.api.find(JOBS, "team", "lr-1")["spec"]["runPolicy"] == {"suspend": True}
    assert bench.status()["phase"] == "Suspended"
    patches = [call for call in bench.api.calls if call[:2] == ("patch", "mptrainingjobs")]
    bench.queue.add(Key("team", "lr"))
    bench.run(5.0)
    assert [call for call in bench.api.calls if call[:2] == ("patch", "mptrainingjobs")] == patches
    bench.job("lr-1", "Suspended")
    bench.run(5.0)
    bench.edit(runPolicy={})
    bench.run(5.0)
    assert bench.api.find(JOBS, "team", "lr-1")["spec"]["runPolicy"] == {"suspend": False}
    bench.succeed("lr-1", 0.5)
    assert bench.made() == ["lr-1", "lr-2"]


def test_a_sweep_whose_job_changed_beyond_use_is_suspended_all_the_same(api: Any, clock: Clock) -> None:
    """The API server takes any job; without its epochs early stopping has no rungs."""
    spec = {**document()["spec"], "trials": {"max": 1, "parallel": 2}}
    spec["stop"] = {"earlyStopping": {"rule": "Hyperband"}}
    spec["job"] = {**JOB, "training": {"epochs": 9}}
    bench = Bench(api, clock, {**document(), "spec": spec})
    bench.run()
    bench.job("lr-1", "Running")
    bench.run(5.0)
    bench.edit(job={**JOB, "training": {}}, runPolicy={"suspend": True})
    bench.run(5.0)
    assert api.find(JOBS, "team", "lr-1")["spec"]["runPolicy"] == {"suspend": True}
    bench.job("lr-1", "Suspended")
    bench.run(5.0)
    bench.edit(runPolicy={})
    bench.run(5.0)
    assert api.find(JOBS, "team", "lr-1")["spec"]["runPolicy"] == {"suspend": False}
    assert bench.made() == ["lr-1"]
    running = next(each for each in bench.status()["conditions"] if each["type"] == "Running")
    assert (running["status"], running["reason"]) == ("False", "SearchChanged")


def test_a_paused_sweep_is_left_alone_until_the_annotation_is_removed(bench: Bench) -> None:
    bench.run()
    meta = bench.api.find(SWEEPS, "team", "lr")["metadata"]
    bench.change(metadata={**meta, "annotations": {"mptraining.dev/paused": "true"}})
    bench.run(5.0)
    written = len(bench.api.written())
    bench.succeed("lr-1", 0.5)
    assert (len(bench.api.written()), bench.made()) == (written, ["lr-1"])
    bench.change(metadata={**bench.api.find(SWEEPS, "team", "lr")["metadata"], "annotations": {}})
    bench.run(5.0)
    assert bench.made() == ["lr-1", "lr-2"]
    assert [reason for _, reason in bench.said if "aused" in reason] == ["Paused", "Unpaused"]


def test_a_sweep_of_a_namespace_that_cannot_be_listed_starts_no_trial(bench: Bench) -> None:
    bench.known = False
    bench.run(5.0)
    assert bench.api.written() == []


def test_a_sweep_with_mistakes_fails_before_its_first_trial(bench: Bench) -> None:
    bench.mistakes = "spec.parameters[0].path: no such field"
    bench.run(5.0)
    assert (bench.status()["phase"], bench.made()) == ("Failed", [])
    stalled = next(each for each in bench.status()["conditions"] if each["type"] == "Stalled")
    assert (stalled["reason"], stalled["message"]) == ("InvalidSpec", bench.mistakes)
    # A check of a large search takes tenths of a second: it is not repeated whenever the sweeps are listed.
    checks = bench.checks
    bench.queue.add(Key("team", "lr"))
    bench.run(5.0)
    assert bench.checks == checks == 1


def test_a_finished_sweep_is_deleted_after_its_time(api: Any, clock: Clock) -> None:
    short = {"runPolicy": {"ttlSecondsAfterFinished": 60}, "parameters": [{"path": "training.seed", "values": [1]}]}
    bench = Bench(api, clock, document(**short))
    bench.run()
    bench.succeed("lr-1", 0.5)
    assert bench.status()["phase"] == "Succeeded"
    bench.run(50.0)
    assert api.find(SWEEPS, "team", "lr") is not None
    bench.run(20.0)
    assert api.find(SWEEPS, "team", "lr") is None


def test_jobs_that_still_run_at_the_end_are_deleted(api: Any, clock: Clock) -> None:
    bench = Bench(api, clock, document(trials={"parallel": 2}, stop={"target": 0.3}))
    bench.run(5.0)
    assert bench.made() == ["lr-1", "lr-2"]
    bench.succeed("lr-1", 0.25)
    assert bench.status()["phase"] == "Succeeded"
    assert bench.states() == ["Succeeded", "Stopped"]
    assert api.find(JOBS, "team", "lr-2") is None


def test_a_slow_proposal_ends_the_turn(api: Any, clock: Clock) -> None:
    slow = document("slow", trials={"parallel": 8}, parameters=[{"path": "training.seed", "values": list(range(8))}])
    other = document("other", objective={"metric": "other", "direction": "Minimize"})
    bench = Bench(api, clock, slow, other, proposal_seconds=0.2)
    bench.run(60.0)
    order = [metric for metric, _ in bench.proposed]
    # The first turn takes a cheap proposal for granted; afterwards one proposal of 0.2 s is a turn.
    turns = [len(list(turn)) for metric, turn in itertools.groupby(order) if metric == "loss"]
    assert order.index("other") < len(order) - 1
    assert turns[0] <= 5
    assert len([name for name in bench.made() if name.startswith("slow")]) == 8


def test_a_job_that_a_sweep_creates_or_suspends_is_queued(bench: Bench) -> None:
    """The watch reports the job in a version that the cache has already."""
    bench.run()
    assert bench.queued_jobs == [Key("team", "lr-1")]
    bench.edit(runPolicy={"suspend": True})
    bench.run(5.0)
    assert bench.queued_jobs == [Key("team", "lr-1")] * 2


def test_a_trial_is_recorded_before_its_job_is_created(bench: Bench) -> None:
    recorded = [("patch", "mptrainingsweeps"), ("create", "mptrainingjobs")]
    bench.run()
    assert [call[:2] for call in bench.api.written()] == recorded
    bench.api.calls.clear()
    bench.succeed("lr-1", 0.5)
    assert [call[:2] for call in bench.api.written()][:2] == recorded


def test_nothing_is_written_when_nothing_changed(bench: Bench) -> None:
    bench.run(10.0)
    bench.api.calls.clear()
    for _ in range(3):
        bench.queue.add(Key("team", "lr"))
        bench.run(5.0)
    assert bench.api.written() == []


def test_a_status_that_another_client_writes_right_after_the_operator_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(5.0)
    put = bench.sweeps.put

    def put_before_another(written: StoredSweep) -> bool:
        """Let the watch bring the other client's version before the worker continues."""
        changed = put(written)
        monkeypatch.undo()
        status = bench.status()
        bench.change(status={**status, "trials": [{**status["trials"][0], "state": "Failed"}]})
        return changed

    monkeypatch.setattr(bench.sweeps, "put", put_before_another)
    bench.job("lr-1", "Running")
    bench.run(5.0)
    assert bench.sweeps.put == put
    assert (bench.states(), bench.made()) == (["Failed", "Running"], ["lr-1", "lr-2"])
