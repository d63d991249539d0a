"""The stubs: twenty, every behaviour twice; what their pods do on a real node is what the played ones do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mptraining_api.spec import MPTrainingJob
from tests.soak.chaos.jobs import BEHAVIOURS, COUNT, SITE, Stub, draw, environment


def test_twenty_jobs_of_every_kind_drawn_by_the_seed() -> None:
    drawn = draw(5, (1, 3))
    assert drawn == draw(5, (1, 3)) != draw(6, (1, 3))
    assert len(drawn) == COUNT == 20
    assert Counter(each.kind for each in drawn) == dict.fromkeys(BEHAVIOURS, 2)
    assert len({each.name for each in drawn}) == COUNT
    assert all(1 <= each.seconds / each.behaviour.times <= 3 for each in drawn)


@pytest.mark.parametrize("kind", BEHAVIOURS)
def test_a_stub_is_a_job_with_as_many_workers_as_codes(kind: str) -> None:
    stub = Stub(f"{kind}-1", kind, 1.0)
    job = MPTrainingJob.parse(stub.document(image="stub:1"))
    assert (job.spec.nodes, job.spec.pod_template.image) == (stub.workers, "stub:1")
    assert all(len(codes) == stub.workers for codes in stub.behaviour.codes)
    assert len(stub.behaviour.codes) == len(stub.behaviour.outcomes)
    assert stub.code(7, 0) == stub.behaviour.codes[-1][0]
    assert stub.outcomes(7) is stub.behaviour.outcomes[-1]
    assert (stub.phase == "Succeeded") == (set(stub.behaviour.codes[-1]) == {0})


def python(folder: Path, stub: Stub, attempt: int, worker: int) -> subprocess.Popen[str]:
    told = environment(stub) | {
        "PYTHONPATH": str(folder),
        "MPTRAINING_ATTEMPT": str(attempt),
        "JOB_COMPLETION_INDEX": str(worker),
    }
    command = [sys.executable, "-c", "raise SystemExit(99)"]
    return subprocess.Popen(command, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True)


def test_a_python_that_finds_the_stub_waits_and_exits_as_is_written(tmp_path: Path) -> None:
    stub = Stub("one", "one-of-two", 0.05)
    # Written once: a process that starts while the file is written again reads an empty one.
    (tmp_path / "sitecustomize.py").write_text(SITE)
    started = {at: python(tmp_path, stub, *at) for at in ((1, 1), (2, 0), (9, 1))}
    codes = {at: process.wait(240) for at, process in started.items()}
    assert codes == {(1, 1): 1, (2, 0): 0, (9, 1): 0}
    told = python(tmp_path, stub, 1, 0)
    assert told.stdout
    assert told.stdout.readline() == "attempt 1, worker 0: None after 0.05 s\n"
    told.send_signal(signal.SIGTERM)
    assert told.wait(240) == 75
    for process in (*started.values(), told):
        assert process.stdout
        process.stdout.close()
