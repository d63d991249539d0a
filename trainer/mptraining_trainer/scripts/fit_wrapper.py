"""Runs an unmodified training script: policy, strategy, telemetry and epoch checkpoints are set up around it.

The script's own `model.fit` trains. For the time of the run `fit` is wrapped: it gets one more callback, and after a
restart begins at the epoch that was reached, its History filled with the epochs before. That is resuming by epoch, not
bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import random
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from mptraining_api.keras_2.source_code import read
from mptraining_api.problems import InvalidProgram, Preempted, Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import Script
from mptraining_api.tensorflow_cloud import inside_job
from mptraining_trainer.checkpoints.state import FitState
from mptraining_trainer.export.float32_model import policy_of, rounded_ids_noticed
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.notebook_shell import place_of
from mptraining_trainer.reporting.errors import of_a_peer
from mptraining_trainer.reporting.secrets import SecretValues
from mptraining_trainer.scripts.error_hints import Circumstances, next_step, one_line
from mptraining_trainer.scripts.job_scope import job_scope
from mptraining_trainer.scripts.late_settings import late_settings_ignored
from mptraining_trainer.scripts.own_optimizers import built_before_their_first_step
from mptraining_trainer.scripts.own_step_scaling import scale_own_train_step, undivided_outside_of_fit


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Puts both states back at the end; Keras 3 draws the seed of its global generator from Python's."""
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)


T = TypeVar("T")


class Added(Enum):
    """What the trainer adds to a script; the topic of its failure, and the failure in words."""

    READ = ("NotRestored", "the checkpoint could not be read")
    BUILD = ("NotBuilt", "the model could not be built from the first batch")
    RESTORE = ("NotRestored", "the model could not be restored")
    SAVE = ("NotSaved", "the checkpoint could not be saved")
    PROGRESS = ("NotReported", "progress could not be reported")
    PROFILE = ("NotProfiled", "the profile could not be recorded")
    SCALE = ("LossNotScaled", "the loss could not be scaled")
    POLICY = ("PolicyUnknown", "the policy of the model's layers could not be read")
    EXPORT = ("NotExported", "the model could not be exported")


class Context(Protocol):
    """What the trainer lends a script. Steps and epochs count over all of its fits; an epoch from 1 when it is done."""

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float], *, epoch_ended: bool = False) -> None:
        """Told about once a second, with the epoch under way, and at its end, then with validation's metrics."""

    def before_batch(self, step: int) -> None:
        """Told before every batch, after `step` steps."""

    def after_batch(self, step: int) -> None:
        """Told after every batch, of which `step` are done."""

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        """Saves a checkpoint after an epoch of the last of these fits; every worker calls it."""

    def earlier(self, model: Any) -> Sequence[FitState]:
        """The fits of earlier attempts up to their checkpoint; asked once, before the first fit, which is `model`'s."""

    def restore(self, model: Any, *, whole: bool) -> bool:
        """Restores what `earlier` spoke of: model and optimizer when `whole`, else the model alone, if it is in it.

        Returns whether it did.
        """

    def fitted(self, model: Any, policy: str, replicas: int) -> None:
        """Told before each fit: the precision policy that the model's layers have, and the replicas it trains on."""

    def failed(self, what: Added, error: Exception) -> None:
        """Told of an error of the trainer's own that the script must not see. Raises what ends the run in spite."""

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        """As Telemetry.notice."""

    def stop_requested(self) -> bool:
        """Whether the machine is being taken away: training stops after the batch at hand."""


class Fits:
    """What happened in the script's fits so far, in this attempt or an earlier one."""

    def __init__(self, strategy: Any, context: Context) -> None:
        self.strategy = strategy
        self.context = context
        self.model: Any = None
        self.steps = 0
        # Of the last fit's model; None before the first one.
        self.policy: str | None = None
        self.done: list[FitState] = []
        self._earlier: Sequence[FitState] | None = None

    @property
    def epochs(self) -> int:
        return sum(fit.epochs for fit in self.done)

    def begin(self, model: Any, planned: int, build: Callable[[], None]) -> tuple[int, FitState]:
        """Of the next fit: how many of its planned epochs to skip, and what an earlier attempt did in their place.

        Fits are known by their order. All before the last one of an earlier attempt are over, whether or not they did
        all they planned; their models get what the checkpoint has of them. The last one goes on with its own optimizer;
        where its model cannot be restored, it begins again. `build` makes the variables of a model that has none yet;
        it is called only where there is something to restore.
        """
        self.model = model
        if self._earlier is None:
            nothing: Sequence[FitState] = ()
            self._earlier = self._guarded(Added.READ, lambda: self.context.earlier(model), nothing)
        number, skipped, before = len(self.done), 0, FitState(epochs=0)
        if number < len(self._earlier):
            last = number == len(self._earlier) - 1
            self._guarded(Added.BUILD, build, None)
            restored = self._guarded(Added.RESTORE, lambda: self.context.restore(model, whole=last), False)
            if restored or not last:
                before = self._earlier[number]
                skipped = min(planned, before.epochs) if last else planned
            else:
                self._earlier = ()
        self.done.append(before.model_copy(deep=True))
        return skipped, before

    def follow(self, what: Added, call: Callable[[], None]) -> None:
        """Does what the trainer adds to a fit; an error of that ends no script that trains without it."""
        self._guarded(what, call, None)

    def _guarded(self, what: Added, call: Callable[[], T], otherwise: T) -> T:
        try:
            with random_states_kept():
                return call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the script has no part in it
            self.context.failed(what, error)
            return otherwise

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        fit = self.done[-1]
        history = {name: [*fit.history.get(name, []), value] for name, value in metrics.items()}
        self.done[-1] = FitState(epochs=fit.epochs + 1, history={**fit.history, **history})


_PATH = "spec.program.script.path"
_SECONDS_BETWEEN_PROGRESS = 1.0


def run_script(job: ResolvedJob, keras: Keras, strategy: Any, context: Context, folder: Path | None = None) -> Any:
    """Runs the script as `__main__` in `folder` (the source; default: the current one), inside the strategy's scope.

    `strategy` is None for one device or a script that makes its own. What the trainer adds to a fit (checkpoints,
    progress, building a model) ends no script by an error: `context.failed` hears of it. Returns the model that its
    last `fit` trained, None when there was none. Raises InvalidProgram for a script that cannot work here,
    Preempted when `context` asked to stop, and Problem (reason ProgramFailed) for an error of the script's own,
    whose traceback is on stderr then.
    """
    script = job.program.script
    assert script is not None
    folder = (folder or Path.cwd()).resolve()
    path = folder / script.path
    if not path.is_file():
        known = ", ".join(sorted(one.name for one in folder.glob("*.py"))) or "no Python files"
        raise InvalidProgram(_PATH, f"no file {script.path!r} in {folder}", expected=f"one of: {known}")
    fits = Fits(strategy, context)
    generations = [keras, load("Keras3")] if keras.legacy else [keras]
    with contextlib.ExitStack() as around:
        around.enter_context(late_settings_ignored(context.notice))
        for generation in generations:
            around.enter_context(_wrapped_fit(generation, fits))
            around.enter_context(rounded_ids_noticed(generation, context.notice))
            around.enter_context(built_before_their_first_step(generation))
        around.enter_context(_as_main(path, folder, script))
        around.enter_context(job_scope(generations, job.precision.policy, strategy))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except _Stop:
            raise Preempted("", f"stopped after {fits.epochs} epochs and {fits.steps} steps") from None
        except SystemExit as end:
            if end.code not in (None, 0):
                raise Problem(script.path, f"the script left with {end.code!r}") from None
        except Problem:
            raise
        except Exception as error:
            if job.processes > 1 and of_a_peer(error):
                # No mistake of the script's: `failures` says what it means.
                raise
            raise _failed(script, folder, error, _circumstances(job, keras, fits, path)) from error
    return fits.model


class _Stop(BaseException):
    """Leaves the script at once; no `except Exception` of its own may keep it."""


@contextlib.contextmanager
def _wrapped_fit(keras: Keras, fits: Fits) -> Iterator[None]:
    original = keras.module.Model.fit
    signature = inspect.signature(original)

    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
        if not keras.legacy and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise InvalidProgram(
                "spec.keras",
                "model.fit of Keras 3 does not work over several workers",
                next_step="Set keras: Legacy and import tf_keras (or tf.keras) in the script.",
            )
        try:
            call = signature.bind(model, *args, **kwargs)
        except TypeError:
            # Keras' own message names its own function.
            return original(model, *args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        first = given["initial_epoch"]
        planned = max(0, given["epochs"] - first)
        fits.policy = policy_of(model, keras)
        replicas = strategy.num_replicas_in_sync
        fits.follow(Added.POLICY, lambda: fits.context.fitted(model, fits.policy or "", replicas))
        if replicas > 1:
            fits.follow(Added.BUILD, lambda: _built_by_its_parts(model, keras))
        skipped, before = fits.begin(model, planned, lambda: _build_from(model, given["x"]))
        given["initial_epoch"] = first + skipped
        given["callbacks"] = _with(given["callbacks"], _callback(keras, fits))
        # A progress bar in a pod's log is one line of many kilobytes.
        if given["verbose"] in ("auto", 1) and not sys.stdout.isatty():
            given["verbose"] = 2
        history = original(*call.args, **call.kwargs)
        # What follows may look at all epochs: where to go on, which one was best, what to draw.
        history.epoch = [*range(first, first + before.epochs), *history.epoch]
        for name, values in before.history.items():
            history.history[name] = [*values, *history.history.get(name, [])]
        return history

    make_train_function = keras.module.Model.make_train_function

    @functools.wraps(make_train_function)
    def scaled(model: Any, *args: Any, **kwargs: Any) -> Any:
        # Here, because `train_on_batch` trains without a `fit`.
        fits.follow(Added.SCALE, lambda: scale_own_train_step(model, keras, fits.context.notice))
        return make_train_function(model, *args, **kwargs)

    # On the class that defines it: `load_model` compiles no class whose `compile` is another than that one's.
    owner = next(each for each in keras.module.Model.__mro__ if "compile" in vars(each))
    compile_model = owner.compile

    @functools.wraps(compile_model)
    def compiled(model: Any, *args: Any, **kwargs: Any) -> Any:
        found = compile_model(model, *args, **kwargs)
        given = args[0] if args else kwargs.get("optimizer")
        fits.follow(Added.SCALE, lambda: undivided_outside_of_fit(model, given, keras, fits.context.notice))
        return found

    owner.compile = compiled
    keras.module.Model.fit = functools.wraps(original)(fit)
    keras.module.Model.make_train_function = scaled
    try:
        yield
    finally:
        owner.compile = compile_model
        keras.module.Model.fit = original
        keras.module.Model.make_train_function = make_train_function


def _with(callbacks: Any, ours: Any) -> Any:
    if hasattr(callbacks, "append") and hasattr(callbacks, "on_epoch_end"):
        callbacks.append(ours)
        return callbacks
    # After the user's own, so that what they add to the logs is reported too.
    return [*(callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []), ours]


def _callback(keras: Keras, fits: Fits) -> Any:
    class Telemetry(keras.module.callbacks.Callback):  # type: ignore[name-defined, misc]
        # tf_keras then leaves the logs on the device, and only what is reported is waited for.
        _supports_tf_logs = True

        def __init__(self) -> None:
            super().__init__()
            self.batches = 0
            self.told = 0.0

        def on_epoch_begin(self, _epoch: int, _logs: Any = None) -> None:
            self.batches = 0

        def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
            fits.follow(Added.PROFILE, lambda: fits.context.before_batch(fits.steps))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            fits.steps += batch + 1 - self.batches
            self.batches = batch + 1
            fits.follow(Added.PROFILE, lambda: fits.context.after_batch(fits.steps))
            if fits.context.stop_requested():
                raise _Stop
            if time.monotonic() - self.told >= _SECONDS_BETWEEN_PROGRESS:
                self.told = time.monotonic()
                fits.follow(Added.PROGRESS, lambda: self._progress(fits.epochs + 1, logs))

        def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
            metrics: dict[str, float] = {}
            fits.follow(Added.PROGRESS, lambda: metrics.update(_numbers(logs)))
            fits.epoch_ended(metrics)
            fits.follow(Added.PROGRESS, lambda: self._progress(fits.epochs, metrics, epoch_ended=True))
            fits.follow(Added.SAVE, lambda: fits.context.save(self.model, fits.done))

        def _progress(self, epoch: int, logs: Any, *, epoch_ended: bool = False) -> None:
            fits.context.progress(fits.steps, epoch, _numbers(logs), epoch_ended=epoch_ended)

    return Telemetry()


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    found = {}
    for name, value in (logs or {}).items():
        # A train_step or a callback of the script's own may return text, vectors or dicts.
        with contextlib.suppress(TypeError, ValueError):
            number = float(np.asarray(value)[()])
            if math.isfinite(number):
                found[str(name)] = number
    return found


def _built_by_its_parts(model: Any, keras: Keras) -> None:
    """Marks a model as built whose layers all are: under a strategy Keras 3 would call it, which may have no `call`."""
    layers = [layer for layer in keras.layers(model) if layer is not model]
    if not keras.legacy and not model.built and layers and all(layer.built for layer in layers):
        model.built = True


def _build_from(model: Any, data: Any) -> None:
    """Builds a model that has no input layer, so that a checkpoint can be restored into it."""
    if model.built and model.variables:
        return
    if isinstance(data, tf.data.Dataset):
        first = next(iter(data.take(1)))
        model(first[0] if isinstance(first, tuple) else first, training=False)
    elif isinstance(data, np.ndarray) or tf.is_tensor(data):
        model(data[:1], training=False)


@contextlib.contextmanager
def _as_main(path: Path, folder: Path, script: Script) -> Iterator[None]:
    before = list(sys.argv), list(sys.path), Path.cwd()
    real = sys.modules.get("tensorflow_cloud")
    # A program that submits itself by tensorflow_cloud must not do so once more from inside the job.
    sys.modules["tensorflow_cloud"] = inside_job
    os.environ[inside_job.RUNNING_REMOTELY] = "1"
    sys.argv = [str(path), *(script.arguments or ())]
    sys.path[:0] = list(dict.fromkeys([str(path.parent), str(folder)]))
    os.chdir(folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        os.chdir(before[2])
        os.environ.pop(inside_job.RUNNING_REMOTELY, None)
        if real is None:
            del sys.modules["tensorflow_cloud"]
        else:
            sys.modules["tensorflow_cloud"] = real


def _circumstances(job: ResolvedJob, keras: Keras, fits: Fits, path: Path) -> Circumstances:
    # Of the model that was fitted, or what the script has set so far.
    policy = fits.policy if fits.policy not in (None, "float32") else keras.module.mixed_precision.global_policy().name
    return Circumstances(
        policy=str(policy),
        policy_of_job=job.precision.policy,
        replicas=job.replicas,
        in_job_scope=fits.strategy is not None,
        legacy=keras.legacy,
        bare=read(path.read_text(encoding="utf-8", errors="replace")).bare,
    )


def _failed(script: Script, folder: Path, error: Exception, under: Circumstances) -> Problem:
    if "Mixing different tf.distribute.Strategy" in str(error):
        return InvalidProgram(
            "spec.strategy",
            f"{script.path} opens a tf.distribute strategy of its own inside the job's",
            next_step="Set strategy: None, or take the strategy out of the script.",
        )
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_relative_to(folder)]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    said = "Traceback (most recent call last):\n" + "".join(lines)
    print(SecretValues.from_environment(os.environ).hide(said), file=sys.stderr, end="", flush=True)
    place = place_of(frames[-1].filename, frames[-1].lineno or 1) if frames else script.path
    return Problem(place, one_line(error), next_step=next_step(error, under) or "")
