"""`mptj` as a process: quick to start, one line for a mistake, the right exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mptraining.cluster.connection import Where, connect
from mptraining.cluster.errors import NoCluster

JobFile = Callable[..., Path]
Environment = Callable[..., dict[str, str]]
RunIn = Callable[..., Path]

HEAVY = ("tensorflow", "kopf", "kubernetes", "google.cloud.storage", "pyarrow", "numpy", "rich", "pydantic")


def mptj(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mptraining", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False, text=True, timeout=240)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import mptraining", id="import mptraining"),
        pytest.param(
            "from mptraining.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass",
            id="mptj --help",
        ),
    ],
)
def test_a_light_start(code: str, environment: Environment) -> None:
    measure = (
        "\nimport os, sys\nspent = os.times()"
        f"\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
        "\nprint(spent.user + spent.system, file=sys.stderr)"
    )
    command, told = [sys.executable, "-c", code + measure], environment()
    # The processor's own time grows too when others share its caches: the minimum of several runs is the code's own.
    for _ in range(5):
        done = subprocess.run(command, env=told, capture_output=True, check=False, text=True, timeout=240)
        loaded, seconds = done.stderr.splitlines()
        assert loaded == "[]"
        if float(seconds) < 0.5:
            break
    assert float(seconds) < 0.5


def test_public_names_come_when_they_are_used(environment: Environment) -> None:
    code = "import mptraining as m; print(m.run_local.__name__, set(m.__all__) <= set(dir(m)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False, text=True)
    assert done.stdout == "run_local True\n"


def test_help_and_version(environment: Environment) -> None:
    shown = mptj("--help", environment=environment())
    assert shown.returncode == 0
    assert all(word in shown.stdout for word in ("run", "check", "compare", "records"))
    assert mptj("--version", environment=environment()).stdout.startswith("mptj ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("run", "none.yaml", "--local"),
            "mptj: none.yaml: No such file or directory; expected an MPTrainingJob in YAML",
        ),
        (
            ("run", "none.yaml"),
            "mptj: none.yaml: No such file or directory; expected an MPTrainingJob in YAML",
        ),
        (
            ("compare", "nowhere"),
            "mptj: nowhere: holds no run: there is no job.json in it; expected the run folder of a job",
        ),
        (
            ("records", "convert", "a", "b", "--image-size", "2"),
            "mptj: --image-size: '2'; expected HEIGHTxWIDTH, such as 224x224",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...],
    line: str,
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mptj(*arguments, environment=environment())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


def test_debug_shows_the_traceback_at_any_position(environment: Environment) -> None:
    for arguments in (["--debug", "compare", "nowhere"], ["compare", "nowhere", "--debug"]):
        assert "Traceback" in mptj(*arguments, environment=environment()).stderr


def test_a_word_it_does_not_know_is_a_usage_error(environment: Environment) -> None:
    done = mptj("trian", environment=environment())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_check_reports_every_file(job_file: JobFile, environment: Environment, tmp_path: Path) -> None:
    good = job_file()
    bad = good.with_name("bad.yaml")
    bad.write_text(good.read_text().replace("nodes", "nodez"))
    done = mptj("check", str(bad), str(good), environment=environment())
    assert done.returncode == 2
    assert done.stderr.startswith(f"{bad}:6: spec.nodez: unknown field. Did you mean 'nodes'?\n")
    assert done.stderr.endswith("mptj: 1 mistake in 1 of 2 files\n")
    assert "precision.policy" in done.stdout
    assert mptj("check", str(good), environment=environment()).returncode == 0


def test_compare_prints_a_table_json_and_a_page(run_in: RunIn, environment: Environment, tmp_path: Path) -> None:
    folders = [str(run_in("one")), str(run_in("two"))]
    page = tmp_path / "page.html"
    shown = mptj("compare", *folders, "--html", str(page), environment=environment())
    assert shown.returncode == 0, shown.stderr
    assert "validation accuracy" in shown.stdout
    assert page.read_text().startswith("<!doctype html>")
    document = json.loads(mptj("compare", *folders, "--json", environment=environment()).stdout)
    assert [run["label"] for run in document["runs"]] == ["one", "two"]


def signals_as_in_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(job: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A local run that has printed READY and the trainer's process id, with that line read."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mptraining", "run", str(job), "--local"],
        env=environment,
        cwd=job.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The tests themselves may run under nohup or in a background shell, which ignore the signals sent here.
        preexec_fn=signals_as_in_a_terminal,  # noqa: PLW1509
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith("READY"):
            return process
    raise AssertionError(process.communicate()[1])


SAVES = """
def leave(*_):
    say("Saved", step=40, uri="x", bytes=1, seconds=0.1)
    finish("Preempted", 75, "told to stop")
signal.signal(signal.SIGTERM, leave)
say("Progress", step=40, total_steps=100, epoch=1, metrics={"loss": 0.5})
print("READY", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "exit_code", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_a_signal_saves_stops_and_prints_how_to_resume(
    number: signal.Signals, exit_code: int, name: str, job_file: JobFile, environment: Environment
) -> None:
    job = job_file()
    process = started(job, environment(SAVES))
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == exit_code
    assert f"{name}: saving and stopping; a second signal stops it at once\n" in out
    by = " by you" if number == signal.SIGINT else ""
    assert out.endswith(f"Stopped{by}. `mptj run {job}` resumes from step 40.\n")
    assert err == ""


def test_ctrl_c_before_training_leaves_at_once(job_file: JobFile, environment: Environment) -> None:
    starts = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('READY', flush=True); time.sleep(60)"
    job = job_file()
    process = started(job, environment(starts))
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out.startswith("Ctrl-C: stopping; training has not begun, and there is nothing to save\n")
    assert out.endswith(f"Stopped by you before training. `mptj run {job}` starts again.\n")
    # 0.3 s for the worker, and what a busy machine adds; 20 s where there is something to save.
    assert time.monotonic() - begin < 10


def test_a_worker_can_tell_its_user_from_a_lost_machine(job_file: JobFile, environment: Environment) -> None:
    tells = """
def leave(*_):
    print("by the user:", os.path.exists(os.environ["MPTRAINING_STOPPED_BY_USER_FILE"]), flush=True)
    finish("Preempted", 75, "told to stop")
signal.signal(signal.SIGTERM, leave)
say("Progress", step=40, total_steps=100, epoch=1, metrics={"loss": 0.5})
print("READY", flush=True)
time.sleep(60)
"""
    job, told = job_file(), environment(tells)
    for number, by_the_user in ((signal.SIGINT, True), (signal.SIGTERM, False)):
        process = started(job, told)
        process.send_signal(number)
        assert f"by the user: {by_the_user}\n" in process.communicate(timeout=600)[0]


def test_a_run_is_on_this_machine_and_says_how_to_reach_a_cluster(
    job_file: JobFile, environment: Environment, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("current-context: team\n")
    told, job = environment("finish('Succeeded', 0)") | {"KUBECONFIG": str(kubeconfig)}, job_file()
    first = mptj("run", str(job), environment=told).stdout.splitlines()[0]
    line = f"training on this machine; the cluster of context 'team' takes the job with: mptj submit {job}"
    assert first == line
    without = mptj("run", str(job), environment=told | {"KUBECONFIG": str(tmp_path / "none")}).stdout
    assert without.startswith("training on this machine; a cluster takes the job with: mptj submit")
    assert "\nstarting TensorFlow…\n" in without


def test_check_json_lists_the_mistakes(job_file: JobFile, environment: Environment) -> None:
    path = job_file()
    path.write_text(path.read_text().replace("epochs: 5", "epochs: five"))
    done = mptj("check", str(path), "--json", environment=environment())
    assert done.returncode == 2
    (mistake,) = json.loads(done.stdout)["mistakes"]
    assert (mistake["line"], mistake["field"], mistake["expected"]) == (9, "spec.training.epochs", "a whole number")


def test_ctrl_c_twice_kills_at_once(job_file: JobFile, environment: Environment) -> None:
    stubborn = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("Progress", step=40, total_steps=100, epoch=1, metrics={"loss": 0.5})
print("READY", flush=True)
time.sleep(60)
"""
    process = started(job_file(), environment(stubborn))
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert process.stdout.readline().startswith("Ctrl-C")
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    # Much sooner than it would end by itself: after the 20 s that it has for saving.
    assert time.monotonic() - begin < 15
    assert "the trainer did not stop in time and was killed" in out


def test_a_closed_pipe_ends_the_trainer_too(job_file: JobFile, environment: Environment) -> None:
    """`mptj run … | head`."""
    process = started(job_file(), environment("print('READY', os.getpid(), flush=True)\nwhile True: print('x' * 1000)"))
    assert process.stdout
    process.stdout.close()
    process.wait(timeout=600)
    assert process.returncode == 1
    assert process.stderr
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_the_exit_code_is_the_workers(job_file: JobFile, environment: Environment) -> None:
    stub = environment("finish('Diverged', 3, 'loss is NaN')")
    done = mptj("run", str(job_file()), "--local", environment=stub)
    assert done.returncode == 3
    assert done.stderr == "mptj: Diverged: loss is NaN.\n"


def test_next_steps_are_flags_here_and_arguments_in_python(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"HOME": str(tmp_path), "KUBECONFIG": ""}
    done = mptj("list", environment=environment() | nowhere)
    assert "Give a kubeconfig (KUBECONFIG, --context …)" in done.stderr
    assert "(--project … --location … --cluster …)" in done.stderr
    assert "Where" not in done.stderr
    for name, value in nowhere.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NoCluster, match=r"where=mptraining\.Where\(context=…\)\), or on GKE"):
        connect(Where())


def test_runs_are_compared_in_the_width_of_the_terminal(environment: Environment, run_in: RunIn) -> None:
    folders = [str(run_in(f"run-{at}", training={"seed": at}, result={"seconds": 10.0 + at})) for at in range(6)]
    told = environment()
    narrow = mptj("compare", *folders, "--sort", "seed", "--metric", "loss", environment=told | {"COLUMNS": "60"})
    assert narrow.returncode == 0, narrow.stderr
    assert max(map(len, narrow.stdout.splitlines())) <= 60
    piped = mptj("compare", *folders, environment={key: value for key, value in told.items() if key != "COLUMNS"})
    assert 60 < max(map(len, piped.stdout.splitlines())) <= 120
    assert "validation loss" not in narrow.stdout
    wrong = mptj("compare", *folders, "--sort", "sede", environment=told)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "mptj: sort: 'sede' is no column of this comparison. Did you mean 'seed'?\n",
    )
