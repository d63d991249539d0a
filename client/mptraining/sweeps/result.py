"""Sweeps in Python: `mptraining.sweep(...)` runs one here, and returns its trials as a value.

found = mptraining.sweep(
    job,
    parameters={"training.optimizer.config.learning_rate": {"logUniform": {"low": 1e-5, "high": 1e-1}},
                "training.batchSize.global": [64, 128, 256]},
    objective="val_accuracy", trials=30)
found.best.parameters
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mptraining.cluster.connection import HERE, Cluster
from mptraining.local.runner import machine_settings, this_machine
from mptraining.packaging.program import merge, refuse_unknown
from mptraining.sweeps import best_job
from mptraining.sweeps.cluster import ClusterSweep, create_sweep
from mptraining.sweeps.display import sweep_html, sweep_panels
from mptraining.sweeps.importance import importance
from mptraining.sweeps.start import open_sweep, run_sweep
from mptraining.sweeps.sweep_file import CheckedSweep, check_sweep_file
from mptraining.sweeps.view import SweepView, lines, one_line, short_names
from mptraining.training_job import TrainingJob, job_document
from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.run_folder import metric_direction
from mptraining_api.spec import API_VERSION
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_api.sweep.status import Trial
from mptraining_api.sweep.trial_job import output_uri
from mptraining_api.validation.job_text import holds_sweep, load_job_text

if TYPE_CHECKING:
    from mptraining.runs import Run
    from mptraining.sweeps.display import SweepDisplay


class Sweep:
    """A sweep with its trials. A notebook shows its curve and its best trials."""

    def __init__(self, view: SweepView) -> None:
        self._view = view

    @property
    def name(self) -> str:
        return self._view.name

    @property
    def folder(self) -> str:
        return self._view.where

    @property
    def trials(self) -> Sequence[Trial]:
        """Return all trials, the best first."""
        return self._view.ranked()

    @property
    def best(self) -> Trial:
        """Return the best trial. Raises InvalidSpec if none has ended."""
        return best_job.chosen_trial(self._view)

    def run(self, trial: int | None = None) -> Run:
        """Return the run of a trial by its number, by default of the best. Raises InvalidSpec, InvalidData."""
        from mptraining.runs import load_run

        number = best_job.chosen_trial(self._view, trial).number
        return load_run(output_uri(self._view.sweep, number) or "")

    def job(self, trial: int | None = None) -> dict[str, Any]:
        """Return the job of a trial, by default of the best, as `mptraining.run_local` and `submit` take it."""
        return best_job.trial_job(self._view, trial)

    def importance(self) -> dict[str, float]:
        """Return the share of each parameter in what makes a trial one of the best; empty with too few trials."""
        return importance(self._view)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame: a row for each trial. Raises InvalidProgram if pandas is not installed."""
        from mptraining.display.plot import load_pandas

        names = short_names(self._view.paths)
        rows = [
            {
                "trial": trial.number,
                "state": str(trial.state),
                self._view.metric: trial.objective,
                **{names[path]: trial.parameters.get(path) for path in self._view.paths},
            }
            for trial in self._view.trials
        ]
        return load_pandas().DataFrame(rows)

    def plot(self) -> Any:
        """Plot the objective of the trials and the best so far, as `History.plot` does."""
        from mptraining.display.plot import plot

        return plot(sweep_panels(self._view))

    def __repr__(self) -> str:
        return f"<Sweep {one_line(self._view)}>"

    def __str__(self) -> str:
        return "\n".join(lines(self._view))

    def _repr_html_(self) -> str:
        return sweep_html(self._view)


def sweep(
    job: str | os.PathLike[str] | TrainingJob | Mapping[str, Any],
    *,
    parameters: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
    objective: str | None = None,
    direction: Literal["Maximize", "Minimize"] | None = None,
    algorithm: Literal["Grid", "Random", "TPE", "CMA-ES", "Hyperband"] | None = None,
    seed: int | None = None,
    trials: int | None = None,
    parallel: int = 1,
    stop: Mapping[str, Any] | None = None,
    name: str | None = None,
    output: str | None = None,
    display: SweepDisplay | None = None,
    **options: Any,
) -> Sweep:
    """Search hyperparameters on this machine, and return the sweep when it has ended or was interrupted.

    `job` is the file of an MPTrainingSweep, the mapping that one holds, or one job to search: a TrainingJob, a job
    file, or the mapping of one. Only a job takes the other arguments of a search.

    `parameters` has the values for each path into the job's spec: a list of values, or the mapping of a sweep file
    ({"logUniform": {"low": 1e-5, "high": 1e-1}}). `objective` is a metric; its `direction` follows from its name if
    that is known. `algorithm` is TPE by default; `stop` is that of a sweep file. The folder is `output`, else the job's
    output.uri, else runs/NAME, where NAME is `name`, by default the job's with "-sweep". The same call continues an
    interrupted sweep. `parallel` trials run at a time. `options` are further arguments of
    `mptraining.sweeps.start.run_sweep`.

    Raises Problem before any process starts, and InvalidProgram if a fault of this machine ends it.
    """
    refuse_unknown("sweep", options, run_sweep)
    search = {"parameters": parameters, "objective": objective, "direction": direction, "seed": seed, "trials": trials}
    search |= {"stop": stop, "name": name, "algorithm": algorithm}
    path, checked = _checked(job, search, here=True)
    opened = open_sweep(path, checked, parallel=parallel, output=output)
    code, view = run_sweep(opened, display=display, **options)
    if code == 75:
        raise InvalidProgram(view.name, "stopped by a fault of this machine", next_step="The same call continues it.")
    return Sweep(view)


def submit_sweep(
    job: str | os.PathLike[str] | TrainingJob | Mapping[str, Any],
    *,
    parallel: int | None = None,
    output: str | None = None,
    cluster: Cluster = HERE,
    **search: Any,
) -> ClusterSweep:
    """Submit a search of hyperparameters to a cluster without waiting; `ClusterSweep.result` returns its trials.

    `job`, `output` and `search` (`parameters`, `objective`, `direction`, `algorithm`, `seed`, `trials`, `stop`, `name`)
    are those of `mptraining.sweep`. Raises Problem before anything is sent, and ClusterProblem.
    """
    refuse_unknown("submit_sweep", search, sweep)
    _, checked = _checked(job, search, here=False)
    more: dict[str, Any] = {} if parallel is None else {"trials": {"parallel": parallel}}
    if output is not None:
        more |= {"job": {"output": {"uri": output}}}
    document = checked.sweep.to_document()
    return create_sweep({**document, "spec": merge(document["spec"], more)}, cluster)


def _checked(
    job: str | os.PathLike[str] | TrainingJob | Mapping[str, Any], search: Mapping[str, Any], *, here: bool
) -> tuple[Path, CheckedSweep]:
    """Return the sweep that a call describes, checked, and its file; only the folder of it must exist."""
    settings = machine_settings(this_machine()) if here else lambda _: ClusterSettings()
    folder = Path.cwd()
    if isinstance(job, str | os.PathLike):
        path = Path(job)
        if holds_sweep(path):
            _refuse(search, "a sweep's file")
            return path, check_sweep_file(path, here=here, settings=settings)
        job, folder = load_job_text(path).content, path.absolute().parent
    document = job_document(job, sweeps=True)
    if document.get("kind") == SWEEP_KIND:
        _refuse(search, "a sweep's mapping")
    else:
        document = _document(document, search)
    checked = check_sweep_file(folder / "sweep.yaml", document=document, here=here, settings=settings)
    return folder / f"{checked.sweep.metadata.name}.yaml", checked


def _refuse(given: Mapping[str, Any], what: str) -> None:
    named = [key for key, value in given.items() if value is not None]
    if named:
        raise InvalidSpec(f"{named[0]}=…", f"given beside {what}", expected="it in the file's spec")


def _document(job: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
    """Return the MPTrainingSweep over one job from the arguments of `sweep`. Raises InvalidSpec."""
    given = collections.defaultdict(lambda: None, search)
    parameters, objective, direction = given["parameters"], given["objective"], given["direction"]
    if not parameters or not isinstance(parameters, Mapping):
        mistake = "missing" if parameters in (None, {}) else repr(parameters)
        raise InvalidSpec("parameters=…", mistake, expected="a mapping of paths to values")
    if objective is None:
        raise InvalidSpec("objective=…", "missing", expected="a metric, such as 'val_accuracy'")
    known = {"up": "Maximize", "down": "Minimize"}.get(metric_direction(objective) or "")
    if direction is None and known is None:
        expected = "'Maximize' or 'Minimize'"
        raise InvalidSpec("direction=…", f"missing; {objective!r} does not tell it", expected=expected)
    spec: dict[str, Any] = {
        "objective": {"metric": objective, "direction": direction or known},
        "algorithm": {
            "name": given["algorithm"] or "TPE",
            **({} if given["seed"] is None else {"seed": given["seed"]}),
        },
        "parameters": [_parameter(path, values) for path, values in parameters.items()],
        "job": dict(job.get("spec") or {}),
        **({} if given["trials"] is None else {"trials": {"max": given["trials"]}}),
        **({} if given["stop"] is None else {"stop": dict(given["stop"])}),
    }
    job_name = str((job.get("metadata") or {}).get("name") or "job")
    return {
        "apiVersion": API_VERSION,
        "kind": SWEEP_KIND,
        "metadata": {"name": given["name"] or f"{job_name}-sweep"},
        "spec": spec,
    }


def _parameter(path: str, values: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(values, Mapping):
        return {"path": path, **values}
    if isinstance(values, str) or not isinstance(values, Iterable):
        refused = f"{values!r} for {path}"
        raise InvalidSpec("parameters=…", refused, expected="a list of values, or a mapping such as logUniform")
    return {"path": path, "values": list(values)}
