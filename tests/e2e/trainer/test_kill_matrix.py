"""A run that is killed at any step and resumed ends with the bits of an undisturbed one; `make soak` kills more often.

Real processes and real signals: SIGKILL, SIGTERM and a lost worker, at any state of the checkpoint's thread.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.soak.kill_and_resume.faults import Fault, Mutation
from tests.soak.kill_and_resume.matrix import compared, different
from tests.soak.kill_and_resume.rounds import STEPS, Configuration, Round, make_data, run

pytestmark = pytest.mark.timeout(1800)

PARTS = {"model", "optimizer", "metrics", "random", "state", "export", "shown metrics"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix")
    make_data(folder)
    return folder


# Each policy, each kind of devices and each generation of Keras; `make soak` has all ten combinations.
CHOSEN = (
    Configuration("mixed_float16", "one replica"),
    Configuration("mixed_bfloat16", "two workers"),
    Configuration("float32", "two replicas", "Legacy"),
)


@pytest.mark.parametrize("configuration", CHOSEN, ids=str)
def test_killed_three_times_and_resumed_it_is_the_same_run(
    data: Path, tmp_path: Path, configuration: Configuration
) -> None:
    (runs,) = compared(data, tmp_path, [configuration], kills=3, seed=1).values()
    for one, differing in runs:
        assert differing == [], f"{configuration}: {one.kills}"
        assert one.digests.keys() == PARTS
        assert len(one.codes) == 4
        assert [code == 0 for codes in one.codes for code in codes].count(True) == configuration.workers


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Round:
    return run(Configuration("float32", "two replicas"), data, tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(
    ("mutation", "others"),
    [
        ("position", {"model", "optimizer", "metrics"}),
        ("seed", {"model", "optimizer", "metrics"}),
        ("replicas", {"metrics"}),
        ("", set()),
    ],
)
def test_an_omission_of_a_checkpoint_is_detected(
    data: Path, tmp_path: Path, whole: Round, mutation: Mutation, others: set[str]
) -> None:
    """The same comparison with checkpoints that omit a part of the state: the comparison can fail, and each part
    matters.
    """
    killed = [{0: Fault(signal.SIGKILL, STEPS - 3)}]
    forgetful = run(Configuration("float32", "two replicas"), data, tmp_path / "run", killed, mutation=mutation)
    assert forgetful.codes == [[-signal.SIGKILL], [0]]
    assert others <= set(different(whole, forgetful))
    assert bool(different(whole, forgetful)) == bool(mutation)
