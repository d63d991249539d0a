"""KerasTuner inside a script on one worker: its state in the run folder, and the number of the trial.

KerasTuner resumes by itself: it stores every trial, and a search that is started again with the same directory runs
the interrupted trials from their beginning and then the missing ones. So the trainer neither saves nor restores the
fits of a trial. It gives the tuners directories in the run folder, ignores `overwrite=True` (nothing in a run folder
is of another run), and reports which trial runs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from mptraining_api.problems import InvalidProgram, Problem
from mptraining_trainer.scripts.tuner_folder import TunerFolder, write_json

PACKAGE = "keras_tuner"


class TrialNumber(NamedTuple):
    """A trial of a search, counted from 1, and the number of trials in all if the tuner has a limit."""

    number: int
    of: int | None


class SearchContext(Protocol):
    """The trainer's callbacks for searches."""

    def check_stop(self) -> None:
        """Raise if this worker is being preempted."""

    def on_trial(self, trial: TrialNumber | None, folder: TunerFolder) -> None:
        """Called with the trial that begins; None as a search ends."""

    def notice(self, topic: str, message: str, *, level: str = "Info") -> None:
        """See `Telemetry.notice`."""


class TunerSearch:
    """The tuners of one script; `workers` is the number of workers that train each model."""

    def __init__(self, folder: TunerFolder, context: SearchContext, *, workers: int = 1) -> None:
        self._folder = folder
        self._context = context
        self._workers = workers
        # Whether a search runs; the tuner of the last one, None again once the script trains a model after it.
        self.searching = False
        self.tuner: Any = None
        self._overwrites: dict[str, int] = {}
        self._downloaded = False

    @contextmanager
    def around_script(self) -> Iterator[None]:
        """Change KerasTuner in the block, as soon as the script imports it."""
        with ExitStack() as stack:
            stack.enter_context(_after_import(PACKAGE, lambda module: self._change(module, stack)))
            yield

    def best_model(self) -> tuple[Any, dict[str, float]]:
        """Return the model of the last search's best trial with the weights of its best epoch, and its metrics.

        Raise Problem if no trial has completed.
        """
        trial = next(iter(self.tuner.oracle.get_best_trials(1)), None)
        if trial is None or trial.status != "COMPLETED":
            raise Problem("", "no trial of the search has completed")
        return self.tuner.get_best_models(1)[0], _metrics(trial)

    def _change(self, module: ModuleType, stack: ExitStack) -> None:
        # Neither the class nor its package has the same name in every version.
        base = next((base for base in module.Tuner.__mro__ if base.__name__ == "BaseTuner"), None)
        if base is None:
            self._context.notice(
                "TunerUnknown",
                f"keras_tuner {module.__version__} has no BaseTuner: its state stays where the script puts it",
                level="Warning",
            )
            return
        files = importlib.import_module(f"{base.__module__.partition('.engine.')[0]}.utils")
        for owner, name, changed in (
            (base, "__init__", self._with_own_directory),
            (base, "search", self._as_search),
            (base, "_try_run_and_update_trial", self._as_trial),
            (base, "save", self._with_upload),
            (files, "save_json", _whole_json),
        ):
            original = getattr(owner, name, None)
            if original is None:
                # An older version runs a trial within `search`, so that its number is not known.
                continue
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, functools.wraps(original)(changed(original)))

    def _with_own_directory(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def init(tuner: Any, *args: Any, **kwargs: Any) -> None:
            if not self._downloaded:
                self._downloaded = True
                self._folder.download()
            try:
                call = signature.bind(tuner, *args, **kwargs)
            except TypeError:
                # KerasTuner's own message names its function.
                return original(tuner, *args, **kwargs)
            call.apply_defaults()
            self._set_directory(call.arguments)
            return original(*call.args, **call.kwargs)

        return init

    def _set_directory(self, given: dict[str, Any]) -> None:
        """Replace a directory below the script's, or a temporary one, by the same one in the run folder, which is never
        overwritten.

        A pod loses its temporary directory at its end.
        """
        written = str(given["directory"] or ".")
        below = written if "://" in written else os.path.relpath(written)
        temporary = Path(tempfile.gettempdir())
        if Path(written).is_relative_to(temporary) and below.startswith(os.pardir):
            below = str("tmp" / Path(written).relative_to(temporary))
        if "://" in written or below.split(os.sep, 1)[0] == os.pardir:
            self._context.notice(
                "TunerDirectory",
                f"KerasTuner's state is in {written}, as the script says, and not in the run folder: a restart "
                "continues the search only if that directory still exists and overwrite is not True",
                level="Warning",
            )
            return
        project = f"{below}/{given['project_name']}"
        if given["overwrite"]:
            # A tuner that overwrites an earlier one's directory gets one of its own, so that a restart finds both.
            self._overwrites[project] = self._overwrites.get(project, 0) + 1
            given["overwrite"] = False
        given["directory"] = str(self._folder.directory(below, self._overwrites.get(project, 1)))

    def _as_search(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def search(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._workers > 1:
                raise InvalidProgram(
                    "spec.program.script",
                    f"the script searches with KerasTuner, which trains a trial on one worker, and the job has "
                    f"{self._workers}",
                    next_step="Set workers: 1, or write an MPTrainingSweep, whose trials run at the same time.",
                )
            self.searching, self.tuner = True, tuner
            try:
                return original(tuner, *args, **kwargs)
            finally:
                self.searching = False
                self._context.on_trial(None, self._folder)

        return search

    def _as_trial(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(tuner: Any, trial: Any, *args: Any, **kwargs: Any) -> Any:
            self._context.check_stop()
            name = str(trial.trial_id)
            if name.isdecimal():
                self._context.on_trial(TrialNumber(int(name) + 1, tuner.oracle.max_trials), self._folder)
            return original(tuner, trial, *args, **kwargs)

        return run

    def _with_upload(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(tuner: Any) -> Any:
            result = original(tuner)
            self._folder.upload()
            return result

        return save


def _whole_json(original: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    """KerasTuner truncates a file before it writes it: a kill in between would leave no state to continue from."""

    def save_json(path: str, obj: Any) -> str:
        return original(path, obj) if "://" in str(path) else write_json(str(path), obj)

    return save_json


def _metrics(trial: Any) -> dict[str, float]:
    metrics = {name: trial.metrics.get_best_value(name) for name in trial.metrics.metrics}
    return {name: float(value) for name, value in metrics.items() if value is not None}


class _Loader(Loader):
    def __init__(self, loader: Loader, call: Callable[[ModuleType], None]) -> None:
        self._loader, self._call = loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The package's own loader reads its resources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call(module)


class _Finder(MetaPathFinder):
    def __init__(self, package: str, call: Callable[[ModuleType], None]) -> None:
        self._package, self._call = package, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._package:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._call)
                return spec
        return None


@contextmanager
def _after_import(package: str, call: Callable[[ModuleType], None]) -> Iterator[None]:
    """In the block, call `call` with the top-level package once it has been imported."""
    if package in sys.modules:
        call(sys.modules[package])
        yield
        return
    finder = _Finder(package, call)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
