"""A sweep on this machine with real processes: neither kills nor interrupts change its trials or their order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mptraining.sweeps.display import SweepDisplay
from mptraining.sweeps.folder import SweepFolder
from mptraining.sweeps.start import open_sweep, run_sweep
from mptraining.sweeps.view import SweepView
from mptraining_api.sweep.status import TrialState
from mptraining_storage import storage
from tests.testbed.sweep_files import TRAINER, run

SweepFile = Callable[..., Path]
Stub = Callable[[str], tuple[str, str]]


pytestmark = pytest.mark.usefixtures("here")


def proposals(view: SweepView) -> list[tuple[int, Mapping[str, Any]]]:
    return [(trial.number, trial.parameters) for trial in view.trials]


def test_a_finished_sweep_is_not_run_again_and_higher_limits_continue_it(
    sweep_file: SweepFile, trainer: tuple[str, str]
) -> None:
    _, first = run(sweep_file(trials=2), trainer)
    _, again = run(sweep_file(trials=2), ("false", ""))
    assert again.status == first.status
    # As another version writes it, with another digest of the same search.
    SweepFolder(Path("runs/flowers")).write(first.sweep, first.status.model_copy(update={"search_digest": None}))
    _, more = run(sweep_file(trials=4), trainer)
    _, whole = run(sweep_file(trials=4), trainer, output="runs/whole")
    assert proposals(more) == proposals(whole)
    assert proposals(more)[:2] == proposals(first)


def test_a_sweep_does_not_train_on_from_the_trials_of_an_earlier_one_of_its_name(
    sweep_file: SweepFile, trainer: tuple[str, str]
) -> None:
    """As with trials in a bucket: the sweep's own folder is new, theirs are not."""
    path = sweep_file(trials=1)
    _, first = run(path, trainer)
    folder = Path("runs/flowers")
    (folder / "sweep.json").unlink()
    (folder / "jobs/flowers-1.json").unlink()
    code, again = run(path, trainer)
    assert (code, again.trials[0].state) == (1, TrialState.FAILED)
    end = SweepFolder(folder).jobs()["flowers-1"].end
    assert end is not None
    assert end.message == (
        f"ResumeRefused: {Path.cwd()}/runs/flowers/trials/1: the folder belongs to another job: an earlier sweep's or "
        "job's. Give the sweep another output.uri, or delete this folder."
    )
    assert again.sweep.metadata.uid != first.sweep.metadata.uid
    stored = SweepFolder(folder).read()
    assert stored is not None
    assert stored[0].metadata.uid == again.sweep.metadata.uid


def test_a_trial_that_the_time_limit_stopped_continues_when_the_limit_is_raised(
    sweep_file: SweepFile, stub: Stub
) -> None:
    # The first trial runs until it is stopped, and the limit has passed at the second look.
    times = iter([0.0, 0.0, 0.0])
    opened = open_sweep(sweep_file(trials=2, more="  stop: {afterSeconds: 100}\n"))
    _, stopped = run_sweep(
        opened,
        command=stub("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntime.sleep(5)"),
        display=SweepDisplay(),
        clock=lambda: next(times, 200.0),
    )
    assert [trial.state for trial in stopped.trials] == [TrialState.STOPPED]
    assert stopped.finished is not None
    opened = open_sweep(sweep_file(trials=2, more="  stop: {afterSeconds: 1000}\n"))
    command = stub(TRAINER + "\nsucceed()")
    code, view = run_sweep(opened, command=command, display=SweepDisplay(), clock=lambda: 300.0)
    assert code == 0
    assert [trial.state for trial in view.trials] == [TrialState.SUCCEEDED] * 2
    assert proposals(view)[0] == proposals(stopped)[0]


def test_early_stopping_continues_the_best_trial_in_its_run_folder(
    sweep_file: SweepFile, trainer: tuple[str, str]
) -> None:
    _, view = run(sweep_file(algorithm="Hyperband", trials=4), trainer)
    assert [trial.state for trial in view.trials].count(TrialState.SUCCEEDED) >= 1
    for trial in view.trials:
        assert [value.epoch for value in trial.values or ()] == [1, 3, 4][: (trial.rung or 0) + 1]
    best = next(trial for trial in view.trials if trial.state is TrialState.SUCCEEDED)
    events = Path(f"runs/flowers/trials/{best.number}/events").iterdir()
    assert {path.name.partition("-")[0] for path in events} == {"1", "2", "3"}


def test_trials_run_side_by_side(sweep_file: SweepFile, stub: Stub, tmp_path: Path) -> None:
    # Each trial waits for another one: alone, the first would wait for ever.
    command = stub(
        f"from pathlib import Path\nmine = Path({str(tmp_path)!r})\n(mine / f'here-{{os.getpid()}}').touch()\n"
        "while len(list(mine.glob('here-*'))) < 2: time.sleep(0.01)\n" + TRAINER + "\nsucceed()"
    )
    code, view = run(sweep_file(trials=2), command, parallel=2)
    assert code == 0
    assert view.status.succeeded == 2


def test_a_fault_of_the_machine_stops_the_sweep_and_the_same_command_continues(
    sweep_file: SweepFile, stub: Stub, trainer: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    fault = "\nboth('Finished', reason='StorageUnavailable', exit_code=75, message='no answer')\nsys.exit(75)"
    code, view = run(sweep_file(trials=2), stub(TRAINER + fault))
    assert code == 75
    assert [trial.state for trial in view.trials] == [TrialState.RUNNING]
    assert "stopped by a fault of this machine: trial 1: StorageUnavailable: no answer" in capsys.readouterr().out
    code, view = run(sweep_file(trials=2), stub(TRAINER + "\nsucceed()"))
    assert code == 0
    assert len(view.trials) == 2


# A shell starts what runs in the background with SIGINT ignored, and this would be inherited.
DRIVER = """\
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import sys
from pathlib import Path
from mptraining.sweeps.display import SweepDisplay
from mptraining.sweeps.start import open_sweep, run_sweep
code, _ = run_sweep(open_sweep(Path(sys.argv[1]), parallel=int(sys.argv[4])), command=(sys.argv[2], sys.argv[3]),
                    display=SweepDisplay())
sys.exit(code)
"""


def start_driver(
    path: Path, command: tuple[str, str], environment: dict[str, str], *, parallel: int = 1
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(path), *command, str(parallel)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def stored_view(folder: str = "runs/flowers") -> SweepView:
    stored = SweepFolder(Path(folder)).read()
    assert stored is not None
    return SweepView(*stored, folder)


def test_ctrl_c_keeps_everything_and_the_same_command_continues(
    sweep_file: SweepFile, stub: Stub, environment: Callable[..., dict[str, str]]
) -> None:
    path = sweep_file(trials=3)
    command = stub(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n" + TRAINER + "\n"
        "both('Progress', step=1, total_steps=4, epoch=1, metrics={})\n"
        f"while not os.path.exists({str(path.parent / 'go')!r}): time.sleep(0.01)\nsucceed()"
    )
    driver = start_driver(path, command, environment())
    events = Path("runs/flowers/trials/1/events")
    while not (events.is_dir() and any(each.stat().st_size for each in events.iterdir())):
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "Ctrl-C: 1 running trial will save and stop" in out
    interrupted = proposals(stored_view())
    (path.parent / "go").touch()
    driver = start_driver(path, command, environment())
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 0
    assert out.startswith("continues: flowers: Running, 0 of 3 trials")
    _, whole = run(path, stub(TRAINER + "\nsucceed()"), output="runs/whole")
    assert proposals(stored_view()) == proposals(whole)
    assert interrupted == proposals(whole)[:1]


def kill_until_it_ends(
    path: Path, command: tuple[str, str], environment: dict[str, str], *, kills: int, parallel: int
) -> int:
    """Kill the driver with SIGKILL at random moments, then let it end; return the number of kills that hit it."""
    moments = random.Random(19)
    hit = 0
    for _ in range(kills):
        driver = start_driver(path, command, environment, parallel=parallel)
        try:
            driver.communicate(timeout=moments.uniform(0.3, 1.8))
            break
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.communicate()
            hit += 1
    driver = start_driver(path, command, environment, parallel=parallel)
    driver.communicate(timeout=120)
    assert driver.returncode == 0
    return hit


@pytest.mark.parametrize(("parallel", "algorithm"), [(1, "TPE"), (2, "TPE, reproducible: true")])
def test_a_killed_driver_loses_no_trial_and_repeats_none(
    parallel: int, algorithm: str, sweep_file: SweepFile, stub: Stub, environment: Callable[..., dict[str, str]]
) -> None:
    path = sweep_file(trials=12, algorithm=algorithm)
    # Long enough that an idle machine is still at it when the third kill comes.
    command = stub(TRAINER + f"\ntime.sleep({0.2 * parallel - 0.05})\nsucceed()")
    hit = kill_until_it_ends(path, command, environment(), kills=12, parallel=parallel)
    assert hit >= 3, "the moments missed the sweep"
    killed = stored_view()
    _, whole = run(path, stub(TRAINER + "\nsucceed()"), output="runs/whole", parallel=parallel)
    assert proposals(killed) == proposals(whole)
    assert [each.objective for each in killed.trials] == [each.objective for each in whole.trials]
    assert {each.state for each in killed.trials} == {TrialState.SUCCEEDED}
    jobs = storage.list_objects("runs/flowers/jobs")
    assert {Path(stored.uri).stem for stored in jobs} == {trial.job for trial in whole.trials}
