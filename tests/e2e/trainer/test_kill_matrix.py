"""A run that is killed at any step and resumed ends with the bits of an undisturbed one; `make soak` kills more often.

Real processes and real signals: SIGKILL, SIGTERM and a lost worker, at any state of the checkpoint's thread.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.soak.document_table import BEGIN, END, put, table
from tests.soak.kill_and_resume.faults import Fault, Mutation
from tests.soak.kill_and_resume.matrix import LEGACY, MATRIX, compared, different
from tests.soak.kill_and_resume.rounds import STEPS, Configuration, Round, faults, make_data, run
from tests.testbed.forks import Forks

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
    forks: Forks, data: Path, tmp_path: Path, configuration: Configuration
) -> None:
    (runs,) = compared(forks, data, tmp_path, [configuration], kills=3, seed=1).values()
    for one, differing in runs:
        assert differing == [], f"{configuration}: {one.kills}"
        assert one.digests.keys() == PARTS
        assert len(one.codes) == 4
        assert [code == 0 for codes in one.codes for code in codes].count(True) == configuration.workers


@pytest.fixture(scope="module")
def whole(forks: Forks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Round:
    return run(forks, Configuration("float32", "two replicas"), data, tmp_path_factory.mktemp("whole") / "run")


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
    forks: Forks, data: Path, tmp_path: Path, whole: Round, mutation: Mutation, others: set[str]
) -> None:
    """The same comparison with checkpoints that omit a part of the state: the comparison can fail, and each part
    matters.
    """
    killed = [{0: Fault(signal.SIGKILL, STEPS - 3)}]
    forgetful = run(forks, Configuration("float32", "two replicas"), data, tmp_path / "run", killed, mutation=mutation)
    assert forgetful.codes == [[-signal.SIGKILL], [0]]
    assert others <= set(different(whole, forgetful))
    assert bool(different(whole, forgetful)) == bool(mutation)


def test_the_chosen_configurations_are_of_the_matrix() -> None:
    assert set(CHOSEN) <= {*MATRIX, *LEGACY}
    assert {each.policy for each in CHOSEN} == {each.policy for each in MATRIX}
    assert {each.devices for each in CHOSEN} == {each.devices for each in MATRIX}


def test_faults_are_drawn_by_the_seed() -> None:
    for configuration in MATRIX:
        drawn = faults(configuration, 3, 4)
        assert drawn == faults(configuration, 3, 4) != faults(configuration, 4, 4)
        steps = [next(iter(hit.values())).step for hit in drawn]
        assert steps == sorted(steps)
        assert all(0 < step < STEPS for step in steps)
        assert all(worker < configuration.workers for hit in drawn for worker in hit)
    many = [hit for seed in range(20) for hit in faults(Configuration("float32", "two workers"), seed, 4)]
    assert {len(hit) for hit in many} == {1, 2}, "one worker is lost, or all are killed"
    assert {fault.signal for hit in many for fault in hit.values()} == {signal.SIGKILL, signal.SIGTERM}


def test_the_table_goes_between_its_markers(tmp_path: Path) -> None:
    document = tmp_path / "reliability.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put(document, table({"float32, one replica": (5, 20, 0)}, parts=7, where="here", seed=3))
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\nSeed 3, here. 7 digests")
    assert "| float32, one replica | 5 | 20 | 0 |" in text
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    bare = tmp_path / "bare.md"
    bare.write_text("nothing")
    with pytest.raises(ValueError, match="no lines"):
        put(bare, "text")
