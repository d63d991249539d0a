"""`mptraining.tensorflow_cloud`: the job of a call, and the effect of the same call inside the job."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import mptraining.tensorflow_cloud as tfc
from mptraining import colab
from mptraining.cluster import submission
from mptraining.packaging import notebooks, program
from mptraining.tensorflow_cloud_compat import launch
from mptraining_api.problems import InvalidSpec
from mptraining_api.tensorflow_cloud import inside_job

Environment = Callable[..., dict[str, str]]

# tensorflow-cloud 0.1.16's own.
ARGUMENTS = {
    "entry_point": None, "requirements_txt": None, "docker_config": "auto", "distribution_strategy": "auto",
    "chief_config": "auto", "worker_config": "auto", "worker_count": 0, "entry_point_args": None, "stream_logs": False,
    "job_labels": None, "service_account": None,
}  # fmt: skip


class Job:
    warnings = ()

    def __init__(self, document: Mapping[str, Any], **given: Any) -> None:
        self.name = document["metadata"]["name"]
        self.document, self.given = document, given
        self.shown = False

    def logs(self, *, follow: bool) -> None:
        self.shown = follow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and a cluster that accepts everything; outside of a job and of a notebook."""
    monkeypatch.chdir(tmp_path)
    for name in ("TF_KERAS_RUNNING_REMOTELY", "MPTRAINING_JOB_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(submission, "submit", Job)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path


def test_its_arguments_are_tensorflow_cloud_s_in_their_order() -> None:
    parameters = list(inspect.signature(tfc.run).parameters.values())
    first = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert {each.name: each.default for each in first} == ARGUMENTS
    assert [each.name for each in first] == list(ARGUMENTS)
    assert next(iter(inspect.signature(tfc.run_cloudtuner).parameters)) == "num_jobs"


def test_a_script_becomes_a_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tfc.COMMON_MACHINE_CONFIGS["V100_4X"]
    job: Any = tfc.run("train.py", chief_config=config, entry_point_args=["--lr=0.1"], job_labels={"team": "vision"})
    assert job.document["spec"] == {
        "accelerator": {"type": "v100", "countPerWorker": 4},
        "program": {"script": {"path": "train.py", "arguments": ["--lr=0.1"]}},
        "podTemplate": {"labels": {"team": "vision"}},
    }
    assert job["job_id"].startswith("train-")
    assert job["docker_image"] is None
    assert [file.path for file in job.given["package"].files] == ["train.py"]
    assert job.given["archives"] is None
    assert capsys.readouterr().out == f"Job submitted successfully.\nYour job ID is:  {job['job_id']}\n"
    assert not job.shown


def test_what_tensorflow_cloud_has_no_argument_for(here: Path) -> None:
    cluster: Any = object()
    docker = tfc.DockerConfig(image_build_bucket="builds")
    more: dict[str, Any] = {"output": "gs://bucket/run", "spec": {"keras": "Legacy"}, "docker_config": docker}
    job: Any = tfc.run("train.py", name="mine", cluster=cluster, stream_logs=True, **more)
    assert job["job_id"] == "mine"
    assert job.document["spec"]["output"] == {"uri": "gs://bucket/run"}
    assert job.document["spec"]["keras"] == "Legacy"
    assert (job.given["cluster"], job.given["archives"]) == (cluster, "gs://builds/mptraining/source")
    assert job.shown
    assert tfc.run("train.py")["job_id"] != tfc.run("train.py")["job_id"]
    with pytest.raises(TypeError, match=r"Unknown keyword arguments: dict_keys\(\['accelerators'\]\)"):
        tfc.run("train.py", accelerators=4)
    with pytest.raises(ValueError, match="Invalid `backend` input"):
        tfc.run("train.py", backend="moon")  # type: ignore[arg-type]


def test_a_script_that_submits_itself_ends_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(here / "train.py")])
    with pytest.raises(SystemExit) as caught:
        tfc.run()
    assert caught.value.code == 0


def test_a_notebook_continues(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        input_hist_raw = ("", "import tensorflow_cloud as tfc", "tfc.run()")
        user_ns: Mapping[str, str] = {}

    shell = Shell()
    shell.history_manager = shell  # type: ignore[attr-defined]
    for module in (notebooks, program, launch):
        monkeypatch.setattr(module, "ipython_shell", lambda: shell)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    job: Any = tfc.run()
    assert job["job_id"].startswith("notebook-")
    assert job.document["spec"]["program"] == {"script": {"path": "notebook_program.py"}}


def test_functions(here: Path) -> None:
    job: Any = tfc.run(launch.launch)
    assert job.document["spec"]["program"] == {"script": {"path": "run_launch.py"}}
    spec = {"data": {"train": ["gs://b/x"]}}
    job = tfc.run(launch.launch, spec=spec)
    assert job.document["spec"]["program"] == {
        "function": {"entryPoint": "mptraining.tensorflow_cloud_compat.launch:launch"}
    }
    assert job.document["spec"]["data"] == spec["data"]
    with pytest.raises(ValueError, match=r"`entry_point_args` input\. Expected None for a function"):
        tfc.run(launch.launch, entry_point_args=["a"])


def test_any_number_of_tuners_is_one_job_on_one_worker(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tfc.run_cloudtuner(2, entry_point="train.py", name="search", output="gs://bucket/search")
    assert (found["job_ids"], found["docker_image"]) == (["search"], None)
    assert "one job runs all trials, not 2; an MPTrainingSweep (mptj submit sweep.yaml)" in capsys.readouterr().out
    (job,) = found["jobs"]
    assert "workers" not in job.document["spec"]
    assert job.document["spec"]["program"] == {"script": {"path": "train.py"}}
    with pytest.raises(ValueError, match=r"num_jobs must be greater than 0\."):
        tfc.run_cloudtuner(0, entry_point="train.py")
    with pytest.raises(ValueError, match=r"`worker_count` input\. Expected 0"):
        tfc.run_cloudtuner(2, entry_point="train.py", worker_count=1)


# The other modules of its package.


@pytest.mark.parametrize("module", [tfc, inside_job])
def test_a_removed_name_has_a_replacement_in_its_error(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_cloud", module)
    with pytest.raises(
        ImportError, match=r"CloudTuner here: it needs AI Platform Vizier.*keras_tuner.*MPTrainingSweep"
    ):
        exec("from tensorflow_cloud import CloudTuner", {})
    with pytest.raises(ImportError, match="cannot import name 'ruin'"):
        exec("from tensorflow_cloud import ruin", {})
    assert module.__version__ == "0.1.16"


# Inside the job.


@pytest.mark.parametrize("name", ["TF_KERAS_RUNNING_REMOTELY", "MPTRAINING_JOB_FILE"])
def test_inside_a_job_nothing_is_submitted(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert not tfc.remote()
    monkeypatch.setenv(name, "1")
    assert tfc.remote()
    assert not tfc.run("nowhere.py", of_a_later_version=True)
    assert not tfc.run_cloudtuner(-1)


@pytest.mark.parametrize(
    ("use", "said"),
    [(lambda job: job["job_id"], "['job_id']"), (lambda job: job.model().predict(1), ".model")],
)
def test_a_use_of_the_result_ends_the_program_in_the_job(
    use: Callable[[Any], object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {*tfc.__all__} <= {*inside_job.__all__}
    assert not inside_job.run_cloudtuner(num_jobs=2)
    with pytest.raises(SystemExit) as caught:
        use(inside_job.run(3, x=4))
    assert caught.value.code == 0
    assert capsys.readouterr().err == f"the job's own {said} is for the notebook: the program ends here\n"
    assert repr(inside_job.run()) == "{}"
    assert not hasattr(inside_job.run(), "__private__")


# As processes.


def python(code: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    options: dict[str, Any] = {"cwd": folder, "env": environment, "text": True, "timeout": 240}
    return subprocess.run(command, capture_output=True, check=False, **options)


def test_the_real_package_that_is_imported_already_is_refused(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "tensorflow_cloud.py").touch()
    ended = python("import tensorflow_cloud, mptraining.colab", environment(), tmp_path)
    assert "tensorflow_cloud: the real package is already imported. Restart, and write" in ended.stderr


UNCHANGED = """\
import sys
import tensorflow_cloud as tfc
from neighbour import NAME
print(sys.argv[1:], NAME, __name__)
tfc.run(entry_point=None, chief_config=tfc.COMMON_MACHINE_CONFIGS["K80_1X"])
print("not reached")
"""


def test_an_unchanged_script_trains_here_by_one_command(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "project").mkdir()
    (here / "project" / "scale.py").write_text(UNCHANGED)
    (here / "project" / "neighbour.py").write_text("NAME = 'x'")
    for name, value in (("argv", ["-m"]), ("path", ["", *sys.path])):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setitem(sys.modules, "tensorflow_cloud", tfc)
    monkeypatch.setenv(launch.BACKEND, "cluster")
    made: list[Any] = []
    monkeypatch.setattr(
        launch, "_train_here", lambda document, package, **_: made.append((document, package)) or Job(document)
    )
    with pytest.raises(SystemExit) as caught:
        colab.main(["--here", "project/scale.py", "--lr=1"])
    assert caught.value.code == 0
    ((document, package),) = made
    assert document["spec"]["accelerator"] == {"type": "t4", "countPerWorker": 1}
    assert [file.path for file in package.files] == ["neighbour.py", "scale.py"]
    out = capsys.readouterr().out
    assert out.startswith("['--lr=1'] x __main__\n")
    assert "note: K80 is no longer offered: the job asks for 1 x T4 in place of 1 x K80" in out


def test_one_line_or_one_variable_decides_where_unchanged_calls_train(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(launch, "_train_here", lambda document, _, **__: made.append(document) or Job(document))
    monkeypatch.setenv(launch.BACKEND, "")
    colab.run_here()
    tfc.run("train.py")
    assert len(made) == 1
    # An argument of the call itself wins.
    assert tfc.run("train.py", backend="cluster")["job_id"]
    assert tfc.run("train.py", cluster=object())["job_id"]  # type: ignore[arg-type]
    assert len(made) == 1
    monkeypatch.setenv(launch.BACKEND, "moon")
    with pytest.raises(InvalidSpec, match="the variable MPTRAINING_BACKEND: 'moon'; expected cluster or local"):
        tfc.run("train.py")


OLDER = "import tensorflow as tf\nprint(model.optimizer.lr)\n"


@pytest.mark.parametrize(
    ("text", "loaded", "asked", "legacy"),
    [
        (OLDER, False, None, "1"),
        ("import tensorflow as tf\n", False, None, None),
        (OLDER, True, None, None),
        (OLDER, False, "0", "0"),
    ],
)
def test_a_program_for_keras_2_has_it_here_too(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, text: str, loaded: bool, asked: str | None,
    legacy: str | None,
) -> None:  # fmt: skip
    # Both are put back afterwards.
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", asked or "")
    if asked is None:
        monkeypatch.delenv("TF_USE_LEGACY_KERAS")
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    if not loaded:
        monkeypatch.delitem(sys.modules, "tensorflow")
    colab._use_keras_2(text)
    assert os.environ.get("TF_USE_LEGACY_KERAS") == legacy
    said = "note: tf.keras is tf_keras here (TF_USE_LEGACY_KERAS=1): the program is written for Keras 2: "
    told = f"{said}model.optimizer.lr (learning_rate is its name in Keras 3)\n"
    assert capsys.readouterr().out == (told if legacy == "1" else "")


def test_what_is_no_script_is_no_command(environment: Environment, tmp_path: Path) -> None:
    for words, said in (([], "usage: python -m mptraining.colab"), (["no.py"], "no script 'no.py'")):
        command = [sys.executable, "-m", "mptraining.colab", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=False, text=True)
        assert done.returncode == 1
        assert said in done.stderr


def test_a_mistake_in_a_script_that_submits_itself(environment: Environment, tmp_path: Path) -> None:
    script = "import mptraining.tensorflow_cloud as tfc\ntfc.run(requirements_txt='requirments.txt')\nprint('here')\n"
    (tmp_path / "requirements.txt").touch()
    done = python(script, environment(), tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.rstrip().endswith("Received: requirments.txt. Did you mean 'requirements.txt'?")
