"""The node limit of a namespace over time: it is never exceeded, and every job that fits gets its turn."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import outcomes
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.status import JobStatus
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import Plan, ReadJobFile
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits
from mptraining_operator.jobs.plan.start import NODE_CHECK_SECONDS
from mptraining_operator.jobs.watch import parse
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.runtime.values import Key
from tests.fakes import with_image

NOW = 1_800_000_000.0
MOST = 4
LIMITS = Limits(
    cluster=ClusterSettings(runtimes=with_image("trainer:1", limits={"workersPerJob": 3, "workersPerNamespace": MOST})),
)


class AdmissionSimulation:
    """Jobs of one namespace as the API server keeps them; a status that is written is known at once."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.cache = Cache(lambda: NOW)
        self.versions = iter(range(1, 100_000))
        self.raw: dict[str, dict[str, Any]] = {}
        self.most_at_once = 0
        self.now = NOW
        for name, workers in sizes.items():
            self.raw[name] = {
                "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "generation": 1},
                "spec": {
                    "accelerator": {"type": "cpu"},
                    "workers": workers,
                    "program": {"application": {"name": "mlp", "classes": 2}},
                    "data": {"train": ["gs://b/t"]},
                    "training": {"batchSize": {"global": 6}},
                    "output": {"uri": "gs://b/o"},
                    "runPolicy": {"pendingTimeoutSeconds": 10**8},
                },
            }
            self.put(name)

    def put(self, name: str, status: JobStatus | None = None) -> None:
        raw = self.raw[name]
        if status is not None:
            raw["status"] = status.to_document()
        raw["metadata"]["resourceVersion"] = str(next(self.versions))
        self.cache.put_job(parse.job(raw))
        self.count()

    def status(self, name: str) -> JobStatus:
        return JobStatus.parse(self.raw[name].get("status", {}))

    def look(self, name: str) -> Plan:
        seen = self.cache.snapshot(Key("team", name), LIMITS)
        assert seen is not None
        # Longer than any wait between two attempts.
        self.now += 1000
        found = plan(seen, self.now)
        if found.actions == (ReadJobFile(),):
            # No child exists here: the job is resolved again.
            self.cache.update_lookups(seen.key, seen.uid, job_text="")
            return self.look(name)
        if found.status is not None:
            self.put(name, found.status)
        return found

    def count(self) -> None:
        workers = sum(parse.workers(raw.get("status", {})) for raw in self.raw.values())
        self.most_at_once = max(self.most_at_once, workers)

    def started(self, name: str) -> bool:
        return bool(self.status(name).current_attempt)

    def end(self, name: str) -> None:
        self.put(name, conditions.with_finished(self.status(name), outcomes.SUCCEEDED, "done", NOW, 1))

    def suspend(self, name: str, value: bool) -> None:
        self.raw[name]["spec"]["runPolicy"] = {"suspend": value, "pendingTimeoutSeconds": 10**8}
        self.raw[name]["metadata"]["generation"] += 1
        self.put(name)


def test_a_job_waits_until_another_has_ended() -> None:
    world = AdmissionSimulation({"first": 3, "second": 2})
    world.look("first")
    held = world.look("second")
    assert not world.started("second")
    assert held.wake_at == world.now + NODE_CHECK_SECONDS
    running = conditions.condition(world.status("second"), "Running")
    assert running is not None
    assert (running.reason, world.status("second").phase) == ("NamespaceFull", "Pending")
    assert (
        "2 workers would be more than the 4 of this namespace (runtimes.default.limits.workersPerNamespace)"
        in running.message
    )
    assert parse.job(world.raw["second"]).awaited_workers == 2
    # While it waits, no status and no event is written again.
    again = world.look("second")
    assert (again.status, again.event_records) == (None, ())
    world.end("first")
    world.look("second")
    assert world.started("second")


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.sampled_from(["look", "end", "suspend", "resume"]), st.integers(0, 5)), max_size=20),
)
def test_a_namespace_never_has_more_workers_and_every_job_ends(sizes: list[int], steps: list[tuple[str, int]]) -> None:
    names = [f"job-{index}" for index in range(len(sizes))]
    world = AdmissionSimulation(dict(zip(names, sizes, strict=True)))
    for what, index in steps:
        name = names[index % len(names)]
        if what == "end" and world.started(name) and world.status(name).phase not in ("Suspended", "Succeeded"):
            world.end(name)
        elif what in ("suspend", "resume"):
            world.suspend(name, what == "suspend")
        world.look(name)
    for name in names:
        world.suspend(name, False)
    for _ in names:
        for name in names:
            world.look(name)
        for name in names:
            if parse.workers(world.raw[name].get("status", {})) and world.status(name).phase != "Succeeded":
                world.end(name)
    assert {world.status(name).phase for name in names} == {"Succeeded"}
    assert world.most_at_once <= MOST
