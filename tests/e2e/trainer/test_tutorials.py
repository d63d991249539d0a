"""Third-party code, unmodified: scripts in the style of public tutorials, without any reference to this project.

Each is preempted between two epochs and run again, in float32 and mixed precision, on one and two replicas.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mptraining_api import events, run_folder
from mptraining_api.events import Event

# Half a minute alone; a busy machine takes ten times that.
pytestmark = pytest.mark.timeout(1800)

HERE = Path(__file__).parents[2] / "training"
SCRIPTS = sorted((HERE / "tutorials").glob("*.py"))
EPOCHS = 3
# Batches of each epoch, by the arguments in the script.
STEPS = {
    "functional_api": 9,
    "custom_train_step": 10,
    "transfer_learning": 4,
    "text_classification": 10,
    "with_argparse": 16,
}
# The accuracy that three epochs reach here.
LEARNT = {"text_classification": ("binary_accuracy", 0.5), "with_argparse": ("accuracy", 0.4)}
# The one that takes half of the time; the corners are enough.
SLOW = "transfer_learning"


def events_of(folder: Path, attempt: int) -> list[Event]:
    (file,) = (folder / run_folder.EVENTS).glob(f"{attempt}-*.jsonl")
    return [event for line in file.read_text().splitlines() if (event := events.parse(line)) is not None]


def test_no_script_knows_this_project() -> None:
    assert {path.stem for path in SCRIPTS} == STEPS.keys()
    for path in SCRIPTS:
        assert "mptraining" not in path.read_text()


@pytest.mark.parametrize(
    ("replicas", "policy", "slow"),
    [
        (1, "float32", False),
        (2, "mixed_bfloat16", True),
    ],
)
def test_tutorials_train_are_preempted_and_resume(replicas: int, policy: str, slow: bool, tmp_path: Path) -> None:
    scripts = [path for path in SCRIPTS if slow or path.stem != SLOW]
    setting = {
        "folder": str(tmp_path),
        "scripts": [str(path) for path in scripts],
        "replicas": replicas,
        "policy": policy,
        "keras": "Keras3",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "tutorial_runs.py"), json.dumps(setting)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for script in scripts:
        folder, steps = tmp_path / script.stem, STEPS[script.stem]
        taken, rest = events_of(folder, 1), events_of(folder, 2)
        description = f"{script.stem}: {[event for event in [*taken, *rest] if not isinstance(event, events.Progress)]}"
        (started,) = [event for event in rest if isinstance(event, events.Started)]
        assert (started.replicas_in_sync, started.precision) == (replicas, policy), description
        assert [event.reason for event in (taken[-1], rest[-1]) if isinstance(event, events.Finished)] == [
            "Preempted",
            "Succeeded",
        ], description
        saved = [[event.step for event in one if isinstance(event, events.Saved)] for one in (taken, rest)]
        assert saved == [[steps, 2 * steps], [3 * steps]], description
        assert [event.message for event in rest if isinstance(event, events.Notice) and event.topic == "Resumed"] == [
            "resuming after epoch 2; scripts resume by epoch"
        ], description
        state = json.loads((folder / run_folder.CHECKPOINTS / f"step-{3 * steps:010d}" / "state.json").read_text())
        assert (state["epoch"], sum(fit["epochs"] for fit in state["fits"])) == (EPOCHS, EPOCHS), description
        assert (folder / run_folder.MODEL / "model.json").exists(), description
        if script.stem in LEARNT:
            metric, least = LEARNT[script.stem]
            last = rest[-1]
            assert isinstance(last, events.Finished)
            assert last.metrics[metric] > least, description
    assert done.stdout.count(f"\nEpochs: {EPOCHS}\n") == len(scripts), "every script sees all of its epochs at its end"
