"""What a pod says of its own end, before others read it; how ends are judged stands in tests/golden/plans."""

from __future__ import annotations

import pytest

from mptraining_api import events
from mptraining_operator.plan.end import find_verdict
from mptraining_operator.plan.snapshot import SeenBatchJob, SeenPod

BATCH_JOB = SeenBatchJob(name="flowers-1", uid="batch", owner_uid="job", attempt=1, created=0.0, ended="Failed")


def message(last_words: str) -> str:
    pod = SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", exit_code=1, termination_message=last_words)
    return find_verdict(BATCH_JOB, (pod,)).message


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain\n\twords: ü, 日本", "plain\n\twords: ü, 日本"),
        ("\x1b[2J\x1b[1;31mall is well\x1b[0m", "all is well"),
        ("title \x1b]0;rm -rf\x07 end", "title ]0;rm -rf end"),
        ("answer\x9b6n back\x08\x08\x7f\r", "answer6n back"),
    ],
)
def test_no_program_speaks_to_the_terminal_of_who_reads_the_status(said: str, shown: str) -> None:
    finished = events.Finished(
        time=1.0, attempt=1, incarnation="pod", worker=0, reason="ProgramFailed", exit_code=1, message=said
    )
    assert message(finished.to_json()) == f"worker 0: {shown}"
    # The end of a log, of a process that left no Event.
    assert shown in message(f"Fatal: {said}.")
