"""Execution of an unmodified script as `__main__`, its `model.fit` wrapped; `train_script` receives what it does.

The script's own `model.fit` trains. During the run `fit` is wrapped: it gets an additional callback, and after a
restart it begins at the epoch that was reached, its History filled with the earlier epochs. So a script resumes by
epoch, not bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import queue
import random
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import _threads_wakeups
from concurrent.futures.thread import _threads_queues
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from mptraining_api.keras_2.source_code import detect_in_source
from mptraining_api.problems import InvalidProgram, Preempted, Problem
from mptraining_api.programs.fields import Script
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.tensorflow_cloud import inside_job
from mptraining_trainer.checkpoints.state import FitState
from mptraining_trainer.export.float32_model import policy_of
from mptraining_trainer.forked_child import drop_in_children, user_code
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.notebook_shell import source_location
from mptraining_trainer.report.error_text import error_text
from mptraining_trainer.report.errors import is_peer_error
from mptraining_trainer.report.secrets import SecretValues
from mptraining_trainer.scripts.error_hints import Circumstances, next_step
from mptraining_trainer.scripts.job_scope import job_scope
from mptraining_trainer.scripts.tuner_search import TunerSearch


@contextmanager
def preserve_random_states() -> Iterator[None]:
    """Restore the random states of Python, from which Keras 3 seeds its global generator, and of NumPy at the end."""
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)


T = TypeVar("T")


class Stop(SystemExit):
    """Ends the script at once: its own `except Exception` does not catch it, and a thread ends without a traceback."""


class Addition(Enum):
    """Functions that the trainer adds to a script, each with the topic and the message of its failure."""

    READ = ("NotRestored", "the checkpoint could not be read")
    BUILD = ("NotBuilt", "the model could not be built from the first batch")
    RESTORE = ("NotRestored", "the model could not be restored")
    SAVE = ("NotSaved", "the checkpoint could not be saved")
    PROGRESS = ("NotReported", "progress could not be reported")
    PROFILE = ("NotProfiled", "the profile could not be recorded")
    POLICY = ("PolicyUnknown", "the policy of the model's layers could not be read")
    BEST = ("NoBestModel", "the model of the search's best trial could not be loaded")
    EXPORT = ("NotExported", "the model could not be exported")


class Context(Protocol):
    """The trainer's callbacks for a script. Steps and epochs count over all of its fits; epochs count from 1."""

    def progress(self, step: int, epoch: int, metrics: Mapping[str, float], *, epoch_ended: bool = False) -> None:
        """Called about once a second with the current epoch, and at its end with validation's metrics too."""

    def before_batch(self, step: int) -> None:
        """Called before every batch, after `step` steps."""

    def after_batch(self, step: int) -> None:
        """Called after every batch; `step` batches are complete."""

    def save(self, model: Any, fits: Sequence[FitState]) -> None:
        """Save a checkpoint after an epoch of the last of these fits; every worker calls it."""

    def load_earlier_fits(self, model: Any) -> Sequence[FitState]:
        """Return the fits of earlier attempts up to their checkpoint; called once, before the first fit, of `model`."""

    def restore(self, model: Any, *, whole: bool) -> bool:
        """Restore from the checkpoint of `load_earlier_fits`; return whether it was restored.

        Model and optimizer are restored if `whole`, else only the model, if it is in the checkpoint.
        """

    def on_fit(self, model: Any, policy: str, replicas: int) -> None:
        """Called before each fit with the precision policy of the model's layers and the number of replicas."""

    def after_fit(self, skipped: int) -> None:
        """Called after each fit with the number of its steps that Keras' loss scaling skipped."""

    def keep_inputs(self, inputs: Any) -> None:
        """Called at the script's end with inputs of the last fit's first batch, None if they are not known."""

    def on_best(self, model: Any, metrics: Mapping[str, float]) -> None:
        """Called with the best model of a search, and the metrics of its trial."""

    def report_failure(self, what: Addition, error: Exception) -> None:
        """Report an error of the trainer that the script must not see. Raise an error that must end the run."""

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        """See `Telemetry.notice`."""

    def stop_requested(self) -> bool:
        """Return whether the worker is being preempted: training then stops after the current batch."""

    def wait(self, seconds: float) -> bool:
        """Wait so long or until the worker is being preempted; return whether it is."""


class Fits:
    """State of the script's fits so far, in this attempt and earlier ones."""

    def __init__(self, strategy: Any, context: Context, tuners: TunerSearch | None = None) -> None:
        self.strategy = strategy
        self.context = context
        self.tuners = tuners
        self.model: Any = None
        self.steps = 0
        # The policy of the last fit's model; None before the first fit.
        self.policy: str | None = None
        self.states: list[FitState] = []
        # Whether a fit ended by a stop request.
        self.stopped = False
        # Returns inputs of the last fit's first batch.
        self.peek: Callable[[], Any] = lambda: None
        self._earlier: Sequence[FitState] | None = None

    @property
    def epochs(self) -> int:
        return sum(fit.epochs for fit in self.states)

    def begin(self, model: Any, planned: int, data: Any) -> tuple[int, FitState]:
        """Return how many planned epochs of the next fit to skip, and the state of the same fit in an earlier attempt.

        Fits are identified by their order. All fits before the last one of an earlier attempt count as complete, even
        if they stopped early; their models are restored as far as the checkpoint has them. The last fit resumes with
        its own optimizer; if its model cannot be restored, it begins again. A model without variables is built from
        `data` if there is something to restore.
        """
        self.model = model
        self.peek = self._call_guarded(Addition.EXPORT, lambda: _peek(data), lambda: None)
        if self._earlier is None:
            nothing: Sequence[FitState] = ()
            self._earlier = self._call_guarded(Addition.READ, lambda: self.context.load_earlier_fits(model), nothing)
        number, skipped, before = len(self.states), 0, FitState(epochs=0)
        if number < len(self._earlier):
            last = number == len(self._earlier) - 1
            self._call_guarded(Addition.BUILD, lambda: _build_from(model, data), None)
            restored = self._call_guarded(Addition.RESTORE, lambda: self.context.restore(model, whole=last), False)
            if restored or not last:
                before = self._earlier[number]
                skipped = min(planned, before.epochs) if last else planned
            else:
                self._earlier = ()
        self.states.append(before.model_copy(deep=True))
        return skipped, before

    @property
    def in_search(self) -> bool:
        """Return whether a tuner's search runs, whose fits KerasTuner itself stores and resumes."""
        return self.tuners is not None and self.tuners.searching

    def trained_model(self) -> Any:
        """Return the model of the last fit, or the best one of the last search if no fit came after it."""
        if self.tuners is None or self.tuners.tuner is None:
            return self.model
        return self._call_guarded(Addition.BEST, self._best_of_search, None)

    def _best_of_search(self) -> Any:
        assert self.tuners is not None
        model, metrics = self.tuners.best_model()
        self.context.on_best(model, metrics)
        return model

    def run_addition(self, what: Addition, call: Callable[[], None]) -> None:
        """Call a function that the trainer adds to a fit; its error must not end a script that trains without it."""
        self._call_guarded(what, call, None)

    def _call_guarded(self, what: Addition, call: Callable[[], T], otherwise: T) -> T:
        try:
            with preserve_random_states():
                return call()
        except Exception as error:  # noqa: BLE001 - the error is the trainer's and not the script's
            self.context.report_failure(what, error)
            return otherwise

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        fit = self.states[-1]
        history = {name: [*fit.history.get(name, []), value] for name, value in metrics.items()}
        self.states[-1] = FitState(epochs=fit.epochs + 1, history={**fit.history, **history})


_PATH = "spec.program.script.path"
_SECONDS_BETWEEN_PROGRESS = 1.0
# The thread that receives SIGTERM notices it later than the script's own handler.
_SECONDS_FOR_SIGTERM = 0.1
_PEEK_ROWS = 16
_PEEK_SECONDS = 60.0


def run_script(
    job: ResolvedJob,
    script: Script,
    keras: Keras,
    strategy: Any,
    context: Context,
    folder: Path | None = None,
    tuners: TunerSearch | None = None,
) -> Any:
    """Run the script as `__main__` in `folder` (the source; default: the current one), inside the strategy's scope.

    `strategy` is None for one device or a script that creates its own. Errors in the trainer's additions to a fit
    (checkpoints, progress, building a model) do not end the script: they go to `context.report_failure`. Return the
    model that the last `fit` trained, or the best one of a search with KerasTuner if that came last, None if there was
    none. Raise InvalidProgram for a script that cannot work here,
    Preempted if `context` requested a stop, and Problem (reason ProgramFailed) for the script's own error, whose
    traceback is written to stderr.
    """
    folder = (folder or Path.cwd()).resolve()
    path = folder / script.path
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in folder.glob("*.py"))) or "no Python files"
        raise InvalidProgram(_PATH, f"no file {script.path!r} in {folder}", expected=f"one of: {known}")
    fits = Fits(strategy, context, tuners)
    generations = [keras, load("Keras3")] if keras.legacy else [keras]
    with contextlib.ExitStack() as around:
        around.enter_context(_as_main(path, folder, script))
        changes = around.enter_context(contextlib.ExitStack())
        around.callback(drop_in_children(changes.close))
        for generation in generations:
            changes.enter_context(_wrapped_fit(generation, fits))
            changes.enter_context(_refuse_graph_mode(generation))
        changes.enter_context(job_scope(generations, job.precision.policy, strategy))
        if tuners is not None:
            changes.enter_context(tuners.around_script())
        try:
            with user_code():
                _run_main(path, fits)
        except Problem:
            raise
        except BaseException as error:
            if job.workers > 1 and is_peer_error(error):
                # A lost peer is not the script's error: `report.errors` converts it.
                raise
            # A script's own handler of SIGTERM may end it by an error or with an exit code of 0.
            if isinstance(error, Stop) or context.wait(_SECONDS_FOR_SIGTERM):
                raise Preempted("", f"stopped after {fits.epochs} epochs and {fits.steps} steps") from None
            if isinstance(error, Exception):
                raise _to_problem(script, folder, error, _circumstances(job, keras, fits, path)) from error
            if not isinstance(error, SystemExit):
                raise
            if error.code not in (None, 0):
                raise Problem(script.path, f"the script left with {error.code!r}") from None
        model = fits.trained_model()
        fits.run_addition(Addition.EXPORT, lambda: context.keep_inputs(fits.peek()))
        return model


def _run_main(path: Path, fits: Fits) -> None:
    """Run the script and, as Python does at a program's end, wait for its threads; those of idle pools never end."""
    before = set(threading.enumerate())
    end: SystemExit | None = None
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        end = error
    while not isinstance(end, Stop):
        others = before.union(_threads_queues, _threads_wakeups)
        started = [thread for thread in threading.enumerate() if not thread.daemon and thread not in others]
        if not started:
            break
        started[0].join()
    if fits.stopped:
        # Also if the script caught it, and if a thread trained.
        raise Stop
    if end is not None:
        raise end


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
            # Keras' own error message names `fit` and not this wrapper.
            return original(model, *args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        first = given["initial_epoch"]
        planned = max(0, given["epochs"] - first)
        fits.policy = policy_of(model, keras)
        replicas = strategy.num_replicas_in_sync
        fits.run_addition(Addition.POLICY, lambda: fits.context.on_fit(model, fits.policy or "", replicas))
        if replicas > 1:
            fits.run_addition(Addition.BUILD, lambda: _built_by_its_parts(model, keras))
        if fits.in_search:
            skipped, before = 0, FitState(epochs=0)
        else:
            if fits.tuners is not None:
                fits.tuners.tuner = None
            skipped, before = fits.begin(model, planned, given["x"])
        given["initial_epoch"] = first + skipped
        given["callbacks"] = _add_callback(given["callbacks"], _callback(keras, fits, in_search=fits.in_search))
        # A progress bar would be one line of many kilobytes in a pod's log.
        if given["verbose"] in ("auto", 1) and not sys.stdout.isatty():
            given["verbose"] = 2
        history = original(*call.args, **call.kwargs)
        # The script may read the History of all epochs, for the next epoch, the best one or a plot.
        history.epoch = [*range(first, first + before.epochs), *history.epoch]
        for name, values in before.history.items():
            history.history[name] = [*values, *history.history.get(name, [])]
        return history

    keras.module.Model.fit = functools.wraps(original)(fit)
    try:
        yield
    finally:
        keras.module.Model.fit = original


@contextlib.contextmanager
def _refuse_graph_mode(keras: Keras) -> Iterator[None]:
    model = keras.graph_model
    if model is None:
        yield
        return
    original = model.fit

    def fit(*_: Any, **__: Any) -> Any:
        raise InvalidProgram(
            _PATH,
            "model.fit in graph mode: without eager execution there would be no checkpoint and no exported model",
            next_step="Delete tf.compat.v1.disable_eager_execution() or disable_v2_behavior(): Keras compiles its step "
            "into a graph without them.",
        )

    model.fit = fit
    try:
        yield
    finally:
        model.fit = original


def _skipped_by(model: Any, keras: Keras) -> Callable[[int], int]:
    """Return a function that, after so many further steps, returns how many of them Keras' loss scaling skipped.

    It returns 0 for a model's own step, which may use other optimizers, or one twice.
    """
    # A callback may compile the model again, with another optimizer.
    optimizer = getattr(model, "optimizer", None)
    before = None if "train_step" in keras.own_steps(model) else keras.applied_steps(optimizer)

    def skipped(steps: int) -> int:
        applied = keras.applied_steps(optimizer)
        return 0 if before is None or applied is None else max(0, steps - (applied - before))

    return skipped


def _add_callback(callbacks: Any, ours: Any) -> Any:
    if hasattr(callbacks, "append") and hasattr(callbacks, "on_epoch_end"):
        callbacks.append(ours)
        return callbacks
    # Our callback comes after the user's own, so that it reports the logs that they add.
    return [*(callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []), ours]


def _callback(keras: Keras, fits: Fits, *, in_search: bool) -> Any:
    class Telemetry(keras.module.callbacks.Callback):  # type: ignore[name-defined, misc]
        # With this attribute tf_keras keeps the logs on the device until they are reported.
        _supports_tf_logs = True

        def __init__(self) -> None:
            super().__init__()
            self.batches = 0
            self.reported_at = 0.0
            self.epoch = 0

        def on_train_begin(self, _logs: Any = None) -> None:
            self.first_step, self.skipped = fits.steps, _skipped_by(self.model, keras)

        def on_train_end(self, _logs: Any = None) -> None:
            steps = fits.steps - self.first_step
            fits.run_addition(Addition.PROGRESS, lambda: fits.context.after_fit(self.skipped(steps)))

        def on_epoch_begin(self, epoch: int, _logs: Any = None) -> None:
            self.batches = 0
            self.epoch = epoch + 1 if in_search else fits.epochs + 1

        def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
            fits.run_addition(Addition.PROFILE, lambda: fits.context.before_batch(fits.steps))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            fits.steps += batch + 1 - self.batches
            self.batches = batch + 1
            fits.run_addition(Addition.PROFILE, lambda: fits.context.after_batch(fits.steps))
            if fits.context.stop_requested():
                fits.stopped = True
                raise Stop
            if time.monotonic() - self.reported_at >= _SECONDS_BETWEEN_PROGRESS:
                self.reported_at = time.monotonic()
                fits.run_addition(Addition.PROGRESS, lambda: self._progress(logs))

        def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
            metrics: dict[str, float] = {}
            fits.run_addition(Addition.PROGRESS, lambda: metrics.update(_numbers(logs)))
            if not in_search:
                fits.epoch_ended(metrics)
            fits.run_addition(Addition.PROGRESS, lambda: self._progress(metrics, epoch_ended=True))
            if not in_search:
                fits.run_addition(Addition.SAVE, lambda: fits.context.save(self.model, fits.states))

        def _progress(self, logs: Any, *, epoch_ended: bool = False) -> None:
            fits.context.progress(fits.steps, self.epoch, _numbers(logs), epoch_ended=epoch_ended)

    return Telemetry()


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    numbers = {}
    for name, value in (logs or {}).items():
        # The script's own train_step or callback may return strings, vectors or dicts.
        with contextlib.suppress(TypeError, ValueError):
            numbers[str(name)] = float(np.asarray(value)[()])
    return numbers


def _built_by_its_parts(model: Any, keras: Keras) -> None:
    """Mark a model as built if its layers are: under a strategy Keras 3 would call it, and it may have no `call`."""
    layers = [layer for layer in keras.layers(model) if layer is not model]
    if not keras.legacy and not model.built and layers and all(layer.built for layer in layers):
        model.built = True


def _build_from(model: Any, data: Any) -> None:
    """Build a model without an input layer, so that a checkpoint can be restored into it."""
    if model.built and model.variables:
        return
    if isinstance(data, tf.data.Dataset):
        first = next(iter(data.take(1)))
        model(first[0] if isinstance(first, tuple) else first, training=False)
    elif isinstance(data, np.ndarray) or tf.is_tensor(data):
        model(data[:1], training=False)


def _peek(data: Any) -> Callable[[], Any]:
    """Return a function that returns inputs of the first batch of what `fit` got, None if it cannot be read again."""
    if isinstance(data, tf.data.Dataset):
        return lambda: _within(_PEEK_SECONDS, lambda: _few(_inputs_of(next(iter(data.take(1))))))
    if hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end"):
        # A PyDataset or Sequence.
        return lambda: _few(_inputs_of(data[0]))
    if data is None or isinstance(data, Iterator | tf.distribute.DistributedDataset):
        return lambda: None
    few = _few(data)
    return lambda: few


def _inputs_of(element: Any) -> Any:
    return element[0] if isinstance(element, tuple) else element


def _few(inputs: Any) -> Any:
    try:
        return tf.nest.map_structure(
            lambda rows: tf.identity(rows[:_PEEK_ROWS] if tf.is_tensor(rows) else np.asarray(rows[:_PEEK_ROWS])), inputs
        )
    except (TypeError, ValueError, IndexError, KeyError):
        return None


def _within(seconds: float, call: Callable[[], T]) -> T | None:
    """Return the call's result; None if it fails or takes longer, as a data set whose source is used up may."""
    results: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def run() -> None:
        result = None
        with contextlib.suppress(Exception):
            result = call()
        results.put(result)

    threading.Thread(target=run, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        return results.get(timeout=seconds)
    return None


@contextlib.contextmanager
def _as_main(path: Path, folder: Path, script: Script) -> Iterator[None]:
    before = list(sys.argv), list(sys.path), Path.cwd()
    real = sys.modules.get("tensorflow_cloud")
    # A program that submits itself by tensorflow_cloud must not submit again from inside the job.
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
    # The policy is that of the last fitted model, or the global one that the script has set.
    policy = fits.policy if fits.policy not in (None, "float32") else keras.policy
    return Circumstances(
        policy=str(policy),
        policy_of_job=job.precision.policy,
        replicas=job.replicas,
        in_job_scope=fits.strategy is not None,
        legacy=keras.legacy,
        bare=detect_in_source(path.read_text(encoding="utf-8", errors="replace")).imports_keras,
    )


def _to_problem(script: Script, folder: Path, error: Exception, circumstances: Circumstances) -> Problem:
    if "Mixing different tf.distribute.Strategy" in str(error):
        return InvalidProgram(
            "spec.strategy",
            f"{script.path} opens its own tf.distribute strategy inside the job's",
            next_step="Set strategy: None, or take the strategy out of the script.",
        )
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if Path(frame.filename).is_relative_to(folder)]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    text = "Traceback (most recent call last):\n" + "".join(lines)
    print(SecretValues.from_environment(os.environ).redact(text), file=sys.stderr, end="", flush=True)
    location = source_location(frames[-1].filename, frames[-1].lineno or 1) if frames else script.path
    return Problem(location, error_text(error), next_step=next_step(error, circumstances) or "")
