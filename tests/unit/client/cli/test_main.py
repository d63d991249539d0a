"""`mptj`: quick to start, verbs of other tools, one line for a mistake, the right exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from mptraining.cli.main import app, main
from mptraining.cluster.connection import Cluster, connect
from mptraining.cluster.errors import NoCluster, Unreachable
from mptraining.local.runner import LocalRunner
from mptraining_api import launch
from mptraining_api.problems import FieldPlace, InvalidData, InvalidSpec

JobFile = Callable[..., Path]

Environment = Callable[..., dict[str, str]]

RunIn = Callable[..., Path]
Mptj = Callable[..., Any]

HEAVY = ("tensorflow", "kopf", "kubernetes", "google.cloud.storage", "pyarrow", "numpy", "rich", "pydantic", "IPython")
NOTEBOOK = """\
import mptraining.colab, tensorflow_cloud as tfc
assert (tfc.__name__, tfc.COMMON_MACHINE_CONFIGS["T4_1X"].cpu_cores) == ("mptraining.tensorflow_cloud", 8)
"""

NOTEBOOK_FILE = json.dumps(
    {
        "cells": [{"cell_type": "code", "source": "print(1)", "metadata": {}, "outputs": [], "execution_count": None}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import mptraining", id="import mptraining"),
        pytest.param("from mptraining.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass",
         id="mptj --help"),
        pytest.param(NOTEBOOK, id="the import line of a notebook for tensorflow-cloud"),
    ],
)  # fmt: skip
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


def test_help_and_version(mptj: Mptj) -> None:
    shown = mptj("--help")
    assert shown.returncode == 0
    assert all(word in shown.stdout for word in ("run", "check", "compare", "records"))
    assert mptj("--version").stdout.startswith("mptj ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("run", "none.yaml"),
            "mptj: none.yaml: No such file or directory; expected an MPTrainingJob in YAML",
        ),
        (
            ("compare", "./nowhere"),
            "mptj: ./nowhere: holds no run: there is no job.json in it; expected the run folder of a job",
        ),
        (
            ("records", "convert", "a", "b", "--image-size", "2"),
            "mptj: --image-size: '2'; expected HEIGHTxWIDTH, such as 224x224",
        ),
        (("run", "a.yaml", "--epoch"), "mptj: No such option '--epoch'. Did you mean '--epochs'? Help: mptj run -h"),
        (
            ("run", "train.py", "--lr=0.1"),
            "mptj: No such option '--lr'. Arguments of the program follow ` -- `. Help: mptj run -h",
        ),
        (("compare", "a", "--set"), "mptj: No such option '--set'. Help: mptj compare -h"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], line: str, mptj: Mptj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mptj(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


@pytest.mark.parametrize("arguments", [("--debug", "compare", "./nowhere"), ("compare", "./nowhere", "--debug")])
def test_with_debug_at_any_position_main_raises_the_error(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(launch.DEBUG, "")
    # Python then prints its traceback.
    with pytest.raises(InvalidData, match=r"\./nowhere: holds no run"):
        main(arguments)


def test_check_reports_every_file(job_file: JobFile, mptj: Mptj) -> None:
    good = job_file()
    bad = good.with_name("bad.yaml")
    bad.write_text(good.read_text().replace("workers", "workerz"))
    done = mptj("check", str(bad), str(good))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{bad}:6: spec.workerz: unknown field. Did you mean 'workers'?\n")
    assert done.stderr.endswith("mptj: 1 mistake in 1 of 2 files\n")
    assert "precision.policy" in done.stdout
    assert mptj("check", str(good)).returncode == 0
    bad.write_text(good.read_text().replace("epochs: 5", "epochs: five"))
    done = mptj("check", str(bad), "-o", "JSON")
    assert done.returncode == 2
    (mistake,) = json.loads(done.stdout)["mistakes"]
    assert (mistake["line"], mistake["field"], mistake["expected"]) == (9, "spec.training.epochs", "a whole number")


def test_compare_prints_a_table_json_and_a_page(run_in: RunIn, mptj: Mptj, tmp_path: Path, monkeypatch: Any) -> None:
    folders = [str(run_in(f"run-{at}", training={"seed": at}, result={"seconds": 10.0 + at})) for at in range(6)]
    page = tmp_path / "page.html"
    shown = mptj("compare", *folders, "--to", str(page))
    assert shown.returncode == 0, shown.stderr
    assert "validation accuracy" in shown.stdout
    assert 60 < max(map(len, shown.stdout.splitlines())) <= 120
    assert page.read_text().startswith("<!doctype html>")
    document = json.loads(mptj("compare", *folders, "-o", "json").stdout)
    assert [run["label"] for run in document["runs"]] == [f"run-{at}" for at in range(6)]
    monkeypatch.setenv("COLUMNS", "60")
    narrow = mptj("compare", *folders, "--sort", "seed", "--metric", "loss")
    assert narrow.returncode == 0, narrow.stderr
    assert max(map(len, narrow.stdout.splitlines())) <= 60
    assert "validation loss" not in narrow.stdout
    wrong = mptj("compare", *folders, "--sort", "sede")
    said = "mptj: --sort: 'sede' is no column of this comparison. Did you mean 'seed'?\n"
    assert (wrong.returncode, wrong.stderr) == (2, said)


def test_a_run_is_on_this_machine_and_says_how_to_reach_a_cluster(
    job_file: JobFile, environment: Environment, mptj: Mptj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment("finish('Succeeded', 0)")["PYTHONPATH"])
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("current-context: team\n")
    job = job_file()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    first = mptj("run", str(job)).stdout.splitlines()[0]
    line = f"training on this machine; the cluster of context 'team' takes the job with: mptj submit {job}"
    assert first == line
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    without = mptj("run", str(job)).stdout
    assert without.startswith("training on this machine; a cluster takes the job with: mptj submit")
    assert "\nstarting TensorFlow…\n" in without


@pytest.mark.parametrize(
    ("typed", "program", "root"),
    [
        ("code/train.py -- --lr=0.1", {"script": {"path": "train.py", "arguments": ["--lr=0.1"]}}, "code"),
        ("code/train.ipynb", {"script": {"path": "train_notebook.py"}}, None),
        ("-f code/train.py --source .", {"script": {"path": "code/train.py"}}, "."),
        ("models:build --data x-*", {"function": {"entryPoint": "models:build"}}, "."),
        ("mlp --classes 3 --data x-*", {"application": {"name": "mlp", "classes": 3}}, "."),
    ],
)
def test_a_program_runs_here_as_it_is_submitted(
    typed: str, program: Any, root: str | None, mptj: Mptj, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[Any] = []

    def run(self: LocalRunner, job: Any, display: object, *, package: Any = None) -> Any:
        del display
        ran[:] = [self.folder, job, package]
        assert (self.output, self.named(FieldPlace("spec.program.script.path"))) == ("runs/x", "TARGET")
        return SimpleNamespace(exit_code=3)

    monkeypatch.setattr(LocalRunner, "run", run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "code" / "train.ipynb").write_text(NOTEBOOK_FILE)
    assert mptj("run", "--run-folder", "runs/x", *typed.split()).returncode == 3
    folder, document, package = ran
    spec = document["spec"]
    assert (spec["program"], spec["output"]) == (program, {"uri": "runs/x"})
    if root is None:
        assert any(b"print(1)" in file.content for file in package.files), "the notebook as a script"
    else:
        assert (folder.resolve(), package) == ((tmp_path / root).resolve(), None)
    if "data" in spec:
        assert spec["data"]["train"] == [str(tmp_path / "x-*")], "a path of the command line"


def test_next_steps_are_flags_here_and_arguments_in_python(
    mptj: Mptj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOME": str(tmp_path), "KUBECONFIG": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = mptj("list")
    assert "Give a kubeconfig (KUBECONFIG, --context), or the name of a cluster on GKE: --gke" in done.stderr
    assert "Cluster" not in done.stderr
    with pytest.raises(NoCluster, match=r"cluster=mptraining\.Cluster\(context=…\)\), or the name"):
        connect(Cluster())
    with pytest.raises(NoCluster, match=r"cluster: 'prod'; expected an mptraining\.Cluster\. Such as"):
        connect("prod")  # type: ignore[arg-type]


def test_verbs_of_other_tools_are_aliases_or_get_a_hint(mptj: Mptj) -> None:
    aliases = {"ls": "list", "ps": "list", "describe": "status", "delete": "cancel", "rm": "cancel"}
    assert app.alias2name == aliases
    assert mptj("ls", "-h").stdout == mptj("list", "-h").stdout
    hints = {
        "trian": "Here: `mptj run FILE`.", "train": "Here: `mptj run FILE`.", "apply": "`mptj submit FILE`",
        "validate": "`mptj check FILE`", "stop": "`mptj suspend NAME` keeps it", "chek": "Did you mean 'check'?",
        "get": "`mptj status NAME`", "xyzzy": "`mptj --help` lists the commands.", "sweep x.yaml": "`mptj run x.yaml`",
    }  # fmt: skip
    for typed, hint in hints.items():
        refused = mptj(*typed.split())
        said = f"mptj: there is no command {typed.split()[-1]!r}. "
        assert (refused.returncode, refused.stderr.startswith(said), hint in refused.stderr) == (2, True, True)


def below(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if isinstance(command, click.Group):
            yield from below(command, f"{name} {word}")


COMMANDS = {"mptj": app, **dict(below(app, "mptj"))}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_screen_and_names_every_value(
    name: str, mptj: Mptj, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    command = COMMANDS[name]
    shown = mptj(*name.split()[1:], "-h").stdout
    lines = shown.splitlines()
    assert len(lines) <= 45, len(lines)
    assert all(len(line) <= 100 and not line.endswith("...") for line in lines[1:]), shown
    assert not re.search(r"\b(TEXT|INTEGER|FLOAT|PATH)\b", shown), "a value without a name"
    described = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    assert all(param.help for param in described)
    if "--gke" in shown:
        assert lines.index("Cluster:") > lines.index("Options:")
        assert lines[-1].lstrip().startswith("--gke PROJECT/LOCATION/CLUSTER")


def test_an_option_has_one_kind_of_value_in_all_commands() -> None:
    values: dict[str, set[str | None]] = {}
    for command in COMMANDS.values():
        for param in command.params:
            for option in param.opts if isinstance(param, click.Option) and not param.hidden else ():
                values.setdefault(option, set()).add(param.metavar)
    several = {option: names for option, names in values.items() if len(names) > 1}
    # What is fetched is a folder, a tracker is one of three, and `logs -f` follows as kubectl's does. A label is a
    # column of a table, or a feature of records.
    assert several == {"--to": {"FILE", "FOLDER", None}, "-f": {"FILE", None}, "--label": {"COLUMN", "NAME"}}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("run job.yaml --parallel 2", "--parallel: has no meaning for a single job"),
        ("submit job.yaml --plain", "--plain: has no meaning for a job without --follow"),
        ("submit job.yaml --follow -o json", "--output: given together with --follow"),
        ("submit mlp --source .", "--source: has no meaning for an application"),
        ("submit train.py --classes 3", "--classes: has no meaning for a script"),
        ("list -A -n team", "--namespace: given together with --all-namespaces"),
        ("list --gke p/c", "--gke PROJECT/LOCATION/CLUSTER: 'p/c'; expected"),
        ("logs ./runs --raw", "--raw: has no meaning for a run folder"),
        ("board --to p.html --port 80", "--port: has no meaning for --to"),
        ("track runs/x --to wandb --uri u", "--uri: has no meaning for --to wandb"),
        ("track runs/x --to tensorboard", "--folder: not given; expected a folder"),
        ("predict m r --to p --dry-run --plain", "--plain: has no meaning for --dry-run"),
        ("submit", "Missing TARGET"),
        ("run -f job.yaml more", "job.yaml: is a complete file; it cannot be combined with ARGUMENTS"),
        ("sweep sweep.yaml", "`mptj run sweep.yaml` runs it here"),
        ("check --runtimes r.yaml sweep.yaml", "--runtimes: has no meaning for a sweep"),
        ("init --batch-size 0", "Invalid value for '--batch-size'"),
    ],
)
def test_what_would_be_ignored_is_refused(
    typed: str, said: str, mptj: Mptj, job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_file()
    monkeypatch.chdir(job.parent)
    job.rename("job.yaml")
    Path("sweep.yaml").write_text("kind: MPTrainingSweep\n")
    done = mptj(*typed.split())
    assert (done.returncode, said in done.stderr, done.stdout) == (2, True, ""), done.stderr


def test_a_word_without_a_slash_is_a_job_and_the_folder_is_suggested(
    mptj: Mptj, run_in: RunIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(run_in("digits").parent)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("compare", "logs", "fetch", "status"):
        refused = mptj(command, "digits")
        assert (refused.returncode, "did you mean ./digits?" in refused.stderr) == (2, True), refused
    assert mptj("compare", "./digits").returncode == 0


def test_every_name_is_acted_upon_and_the_highest_code_is_the_commands(
    mptj: Mptj, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[str] = []
    problems = {"b": Unreachable("cluster", "does not answer"), "c": InvalidSpec("c", "no job")}

    def job_or_sweep(name: str, _: object) -> Any:
        if name in problems:
            raise problems[name]
        seen = SimpleNamespace(finished=None, phase="Suspended")
        return SimpleNamespace(name=name, view=lambda: seen, resume=lambda: resumed.append(name))

    monkeypatch.setattr("mptraining.cli.jobs.job_or_sweep", job_or_sweep)
    done = mptj("resume", "a", "b", "c", "d")
    assert (done.returncode, resumed) == (75, ["a", "d"])
    assert done.stdout == "resumed: a\nresumed: d\n"
    assert done.stderr == "mptj: cluster: does not answer\nmptj: c: no job\n"
