"""MLflow: one run of an experiment, found by a tag, written by MLflow's client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mptraining.tracking.export import Description, State, Status
from mptraining_api.outputs.scalars import Scalar
from mptraining_api.problems import InvalidSpec

_KEY = "mptraining.run_key"
_STATUS = {"running": "RUNNING", "succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# The most that one request may have; `log` gets no more values than it may have.
_PARAMETERS = 100
# MLflow's defaults, 120 s and 7 retries, hold an export for a quarter of an hour; it retries by itself.
_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class MLflowServer:
    """The server at `uri`. Raises InvalidSpec if MLflow is not installed."""

    def __init__(self, uri: str, experiment: str) -> None:
        for name, value in _LIMITS.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            step = "Install it with: pip install 'mptraining[mlflow]'"
            raise InvalidSpec("--to", f"MLflow is not installed here ({error})", next_step=step) from None
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._uri = uri
        self._experiment = experiment
        self._run_id = ""

    def begin(self, run: Description, state: State | None) -> State:
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = str(self._client.create_experiment(self._experiment) if known is None else known.experiment_id)
        run_id = self._find(experiment, run.key)
        if run_id is None:
            made = self._client.create_run(experiment, run_name=run.name, tags={_KEY: run.key})
            run_id = made.info.run_id
            # A run that is new on the server has nothing of what another one had.
            state = None
        elif state is not None and state.run_id != run_id:
            state = None
        self._run_id = run_id
        self._client.update_run(run_id, status="RUNNING")
        self._log_new_parameters(run.parameters)
        from mlflow.entities import RunTag

        self._client.log_batch(run_id, tags=[RunTag(name, value) for name, value in run.tags.items()])
        url = f"{self._uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
        return State(run_id=run_id, url=url if self._uri.startswith("http") else None, step=state.step if state else -1)

    def log(self, scalars: Sequence[Scalar]) -> None:
        """See `Server.log`. A value that the server has is not stored twice."""
        from mlflow.entities import Metric

        metrics = [Metric(scalar.name, scalar.value, int(scalar.time * 1000), scalar.step) for scalar in scalars]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self, status: Status, summary: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        if summary:
            self._client.log_batch(self._run_id, tags=[RunTag(name, value) for name, value in summary.items()])
        if status == "running":
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            self._client.set_terminated(self._run_id, status=_STATUS[status])

    def _find(self, experiment: str, key: str) -> str | None:
        runs = self._client.search_runs([experiment], filter_string=f"tags.`{_KEY}` = '{key}'", max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def _log_new_parameters(self, parameters: dict[str, str]) -> None:
        """Log the parameters that the run lacks: MLflow refuses to change one, as more epochs of a resumed job do."""
        from mlflow.entities import Param, RunTag

        known = self._client.get_run(self._run_id).data.params
        new = [Param(name, value) for name, value in parameters.items() if name not in known]
        for begin in range(0, len(new), _PARAMETERS):
            self._client.log_batch(self._run_id, params=new[begin : begin + _PARAMETERS])
        changed = [
            RunTag(f"changed.{name}", value) for name, value in parameters.items() if known.get(name, value) != value
        ]
        if changed:
            self._client.log_batch(self._run_id, tags=changed)
