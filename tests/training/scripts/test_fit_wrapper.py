"""Training scripts, unmodified: the wrapper around `fit`, resuming, errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram, Preempted, Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.checkpoints.state import FitState
from mptraining_trainer.job.kinds import ScriptJob, kind_of
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.scripts.fit_wrapper import Addition, run_script
from tests.jobs import resolved_job
from tests.testbed.keras_generations import BOTH_GENERATIONS

# Four batches an epoch, two fits: 3 epochs, then 2 more of the same model.
TRAIN = """
import json, os, sys
from pathlib import Path
import numpy as np
import {keras} as keras

class Mine(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["mine"] = 7.0

model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")])
model.compile("sgd", "mse", metrics=["mae"])
x, y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")
first = model.fit(x, y, batch_size=4, epochs=3, validation_data=(x, y), callbacks=[Mine()])
second = model.fit(x, y, 4, 2)
Path("seen.json").write_text(json.dumps(dict(
    arguments=sys.argv[1:], name=__name__, beside=Path("beside.txt").read_text(), epochs=[first.epoch, second.epoch],
    losses=[first.history["loss"], second.history["loss"]])))
"""
FINE_TUNE = """
import numpy as np
import {keras} as keras
import helper
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
{end}
"""
EMBEDS = """
class Tokens(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(9, 4)
    def call(self, x):
        return self.embedding(x)
inputs = keras.Input((6,))
model = keras.Model(inputs, keras.layers.Dense(1)(Tokens()(inputs)))
model.compile('sgd', 'mse')
model.fit(np.ones((4, 6)), np.ones((4, 6, 1)), verbose=0)
"""
OWN_STRATEGY = """
import tensorflow as tf
import numpy as np
import {keras} as keras
with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((4, 3)), np.ones((4, 1)))
"""


class Recorder:
    """A Context that records its calls; `done` are the epochs of the fits of an earlier attempt."""

    def __init__(self, *, done: Sequence[int] = (), stop_after: int | None = None, restores: bool = True) -> None:
        self.states = [FitState(epochs=epochs, history={"loss": [9.0] * epochs}) for epochs in done]
        self.stop_after, self.restores = stop_after, restores
        self.policies: list[tuple[str, int]] = []
        self.failures: list[tuple[Addition, Exception]] = []
        self.notices: dict[str, str] = {}
        self.saved: list[list[int]] = []
        self.restored: list[tuple[int, bool]] = []
        self.told: list[tuple[int, int, Mapping[str, float]]] = []
        self.batches: list[tuple[str, int]] = []
        self.skipped: list[int] = []

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float], *, epoch_ended: bool = False) -> None:
        self.told.append((step, epoch, metrics))

    def before_batch(self, step: int) -> None:
        self.batches.append(("before", step))

    def after_batch(self, step: int) -> None:
        self.batches.append(("after", step))

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        self.saved.append([fit.epochs for fit in fits])

    def load_earlier_fits(self, model: Any) -> Sequence[FitState]:
        return self.states

    def restore(self, model: Any, *, whole: bool) -> bool:
        self.restored.append((len(model.weights), whole))
        return self.restores

    def after_fit(self, skipped: int) -> None:
        self.skipped.append(skipped)

    def keep_inputs(self, inputs: Any) -> None:
        self.inputs = inputs

    def on_fit(self, model: Any, policy: str, replicas: int) -> None:
        self.policies.append((policy, replicas))

    def report_failure(self, what: Addition, error: Exception) -> None:
        self.failures.append((what, error))

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        self.notices[topic] = message

    def stop_requested(self) -> bool:
        return self.stop_after is not None and len(self.saved) >= self.stop_after

    def wait(self, seconds: float) -> bool:
        return self.stop_requested()


@pytest.fixture
def folder(keras: Keras, tmp_path: Path) -> Path:
    package = "tf_keras" if keras.legacy else "keras"
    (tmp_path / "train.py").write_text(TRAIN.format(keras=package))
    (tmp_path / "beside.txt").write_text("read from the source folder")
    (tmp_path / "own.py").write_text(OWN_STRATEGY.format(keras=package))
    (tmp_path / "helper.py").touch()
    ends = {
        "fine": "",
        "raises": "def inner():\n    raise ValueError('no luck')\ninner()",
        "leaves": "raise SystemExit",
        "leaves_0": "import sys; sys.exit(0)",
        "leaves_2": "import sys; sys.exit(2)",
        "leaves_with_words": "import sys; sys.exit('out of cheese')",
        "loads": "import {keras}\nmodel.save('m.keras')\nmodel = {keras}.models.load_model('m.keras')\n"
        "model.fit(np.ones((4, 3)), np.ones((4, 1)))",
        "embeds": EMBEDS,
        "swallows": "try:\n    model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=9)\nexcept Exception:\n    pass",
        "swallows_all": "try:\n    model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=9)\nexcept SystemExit:\n    pass",
        "threaded": "import threading, time\ndef later():\n    time.sleep(0.1)\n"
        "    model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=9, verbose=0)\nthreading.Thread(target=later).start()",
    }
    for name, end in ends.items():
        (tmp_path / f"{name}.py").write_text(FINE_TUNE.format(keras=package, end=end.format(keras=package)))
    (tmp_path / "no_fit.py").write_text("value = 3\n")
    return tmp_path


def job(keras: Keras, path: str, *arguments: str, policy: str = "float32") -> ResolvedJob:
    program = {"script": {"path": path, "arguments": list(arguments)}}
    return resolved_job("job", program=program, data=None, keras=keras.generation, precision={"policy": policy})


def run(keras: Keras, folder: Path, path: str, context: Recorder | None = None, strategy: Any = None) -> Any:
    return run_resolved(job(keras, path), keras, strategy, context or Recorder(), folder)


def run_resolved(resolved: ResolvedJob, *arguments: Any) -> Any:
    kind = kind_of(resolved)
    assert isinstance(kind, ScriptJob)
    return run_script(resolved, kind.script, *arguments)


def test_the_script_has_the_environment_that_it_has_alone(keras: Keras, folder: Path) -> None:
    before = list(sys.argv), list(sys.path), Path.cwd(), keras.module.Model.fit
    resolved = job(keras, "train.py", "--lr=0.1", "twice", policy="mixed_bfloat16")
    model = run_resolved(resolved, keras, None, Recorder(), folder)
    seen = json.loads((folder / "seen.json").read_text())
    assert [len(losses) for losses in seen.pop("losses")] == [3, 2]
    assert seen == {
        "arguments": ["--lr=0.1", "twice"],
        "name": "__main__",
        "beside": "read from the source folder",
        "epochs": [[0, 1, 2], [0, 1]],
    }
    assert model.layers[0].compute_dtype == "bfloat16"
    assert (list(sys.argv), list(sys.path), Path.cwd(), keras.module.Model.fit) == before


@BOTH_GENERATIONS
def test_progress_and_checkpoints_come_with_every_epoch(keras: Keras, folder: Path) -> None:
    context = Recorder()
    run(keras, folder, "train.py", context)
    assert context.saved == [[1], [2], [3], [3, 1], [3, 2]]
    assert context.batches == [(when, step + (when == "after")) for step in range(20) for when in ("before", "after")]
    by_epoch = {epoch: (step, set(metrics)) for step, epoch, metrics in context.told if step % 4 == 0}
    assert by_epoch[1] == (4, {"loss", "mae", "val_loss", "val_mae", "mine"})
    assert by_epoch[5] == (20, {"loss", "mae"})
    assert all(isinstance(value, float) for _, _, metrics in context.told for value in metrics.values())


@pytest.mark.parametrize(
    ("done", "saved", "restored"),
    [
        ([], [[1], [2], [3], [3, 1], [3, 2]], []),
        ([2], [[3], [3, 1], [3, 2]], [True]),
        ([3], [[3, 1], [3, 2]], [True]),
        ([3, 1], [[3, 2]], [False, True]),
        ([3, 2], [], [False, True]),
        # The first fit stopped early, by its own callback: its remaining epochs are not added later.
        ([1, 1], [[1, 2]], [False, True]),
    ],
)
def test_a_restart_continues_after_the_epochs_that_are_done(
    keras: Keras, folder: Path, done: list[int], saved: list[list[int]], restored: list[bool]
) -> None:
    context = Recorder(done=done)
    run(keras, folder, "train.py", context)
    assert context.saved == saved
    # Before the first step, with the weights already restored although the model has no input layer.
    assert context.restored == [(4, whole) for whole in restored]
    seen = json.loads((folder / "seen.json").read_text())
    first = done[0] if len(done) > 1 else 3
    assert seen["epochs"] == [list(range(first)), [0, 1]], "the script sees all epochs"
    assert [losses.count(9.0) for losses in seen["losses"]] == [*done, 0, 0][:2]
    assert [len(losses) for losses in seen["losses"]] == [first, 2]


@pytest.mark.parametrize("script", ["train.py", "swallows.py"])
def test_a_stop_ends_the_script_after_the_batch_at_hand(keras: Keras, folder: Path, script: str) -> None:
    context = Recorder(stop_after=1)
    with pytest.raises(Preempted, match="stopped after 1 epochs"):
        run(keras, folder, script, context)
    assert context.saved == [[1]]
    assert not (folder / "seen.json").exists()


def test_a_loaded_model_is_compiled_as_it_is_alone(keras: Keras, folder: Path) -> None:
    assert run(keras, folder, "loads.py").optimizer is not None


def test_an_embedding_in_a_layer_of_the_script_trains_without_a_warning(keras: Keras, folder: Path) -> None:
    context = Recorder()
    assert run(keras, folder, "embeds.py", context) is not None
    assert not context.failures


@pytest.mark.parametrize(("script", "trains"), [("no_fit.py", False), ("leaves.py", True), ("leaves_0.py", True)])
def test_exit_code_0_is_a_success_with_the_model_of_the_last_fit(
    keras: Keras, folder: Path, script: str, trains: bool
) -> None:
    assert isinstance(run(keras, folder, script), keras.module.Model) is trains


@pytest.mark.parametrize(("script", "code"), [("leaves_2.py", "2"), ("leaves_with_words.py", "'out of cheese'")])
def test_another_exit_code_is_a_failed_program(keras: Keras, folder: Path, script: str, code: str) -> None:
    with pytest.raises(Problem) as raised:
        run(keras, folder, script)
    assert raised.value.reason == "ProgramFailed"
    assert str(raised.value) == f"{script}: the script left with {code}"


def test_an_error_shows_the_users_own_frames_and_no_others(
    keras: Keras, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Problem) as raised:
        run(keras, folder, "raises.py")
    assert raised.value.reason == "ProgramFailed"
    assert str(raised.value) == f"{folder / 'raises.py'}:9: ValueError: no luck"
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.count("  File ") == shown.count(str(folder)) == 2
    assert shown.endswith("ValueError: no luck\n")


def test_a_missing_script_is_named_with_those_that_are_there(keras: Keras, folder: Path) -> None:
    with pytest.raises(InvalidProgram, match=r"no file 'trian\.py' in .*expected one of: .*train\.py"):
        run(keras, folder, "trian.py")


@BOTH_GENERATIONS
def test_the_script_trains_inside_the_jobs_strategy(keras: Keras, folder: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    model = run(keras, folder, "fine.py", strategy=strategy)
    variable = keras.variables_of(model.weights)[0]
    assert len(strategy.experimental_local_results(variable)) == 2


def test_a_strategy_inside_ours_is_refused_naming_the_field(keras: Keras, folder: Path) -> None:
    with pytest.raises(InvalidProgram, match="Set strategy: None"):
        run(keras, folder, "own.py", strategy=tf.distribute.MirroredStrategy(["CPU:0"]))


def test_a_strategy_of_its_own_works_without_ours(keras: Keras, folder: Path) -> None:
    assert run(keras, folder, "own.py") is not None


@pytest.mark.parametrize("keras", ["Keras3"], indirect=True)
def test_keras_3_over_several_workers_is_refused_before_it_fails(keras: Keras, folder: Path) -> None:
    # One worker and no cluster: the kind of strategy is refused.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with pytest.raises(InvalidProgram, match="Set keras: Legacy"):
        run(keras, folder, "fine.py", strategy=strategy)


@pytest.mark.parametrize("keras", ["Legacy"], indirect=True)
def test_import_keras_under_legacy_is_followed_too(keras: Keras, folder: Path) -> None:
    text = (folder / "fine.py").read_text().replace("import tf_keras as keras", "import keras")
    (folder / "fine.py").write_text(text)
    context = Recorder()
    assert run(keras, folder, "fine.py", context) is not None
    assert context.saved == [[1]]


@pytest.mark.parametrize("keras", ["Keras3"], indirect=True)
def test_a_script_that_submits_itself_does_not_do_so_again(
    keras: Keras, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ModuleType("tensorflow_cloud")
    monkeypatch.setitem(sys.modules, "tensorflow_cloud", real)
    (folder / "submits.py").write_text(
        "import os, pathlib\nimport tensorflow_cloud as tfc\nfrom tensorflow_cloud import MachineConfig\n"
        "job = tfc.run(chief_config=MachineConfig(), of_a_later_version=1)\n"
        "seen = [tfc.remote(), os.environ['TF_KERAS_RUNNING_REMOTELY'], bool(job)]\n"
        "pathlib.Path('seen.txt').write_text(str(seen))\njob.wait()\nraise SystemExit('not reached')\n"
    )
    run(keras, folder, "submits.py")
    assert (folder / "seen.txt").read_text() == "[True, '1', False]"
    assert sys.modules["tensorflow_cloud"] is real
    assert "TF_KERAS_RUNNING_REMOTELY" not in os.environ


@pytest.mark.parametrize("keras", ["Keras3"], indirect=True)
def test_an_error_in_a_notebook_names_its_cell(keras: Keras, folder: Path) -> None:
    (folder / "notebook.py").write_text("# %% a.ipynb, cell 1\nx = 0\n\n# %% a.ipynb, cell 2\n\nprint(1 / x)\n")
    with pytest.raises(Problem) as raised:
        run(keras, folder, "notebook.py")
    assert str(raised.value) == "a.ipynb, cell 2, line 2: ZeroDivisionError: division by zero"


# Python ignores a SystemExit in a thread, pytest does not.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", ["leaves_0", "leaves_2", "raises", "swallows_all", "threaded"])
def test_a_preempted_script_is_preempted_however_it_ends(keras: Keras, folder: Path, end: str) -> None:
    """By its own handler of SIGTERM, which may exit or raise, by a fit whose end it ignores, or in a thread."""
    context = Recorder(stop_after=2 if end in ("swallows_all", "threaded") else 1)
    with pytest.raises(Preempted):
        run(keras, folder, f"{end}.py", context)
    assert len(context.saved) == context.stop_after


def test_a_fit_in_a_thread_is_waited_for(keras: Keras, folder: Path) -> None:
    context = Recorder()
    run(keras, folder, "threaded.py", context)
    assert context.saved[-1] == [1, 9]
