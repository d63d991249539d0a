"""User-facing `Job` of a cluster: status, events, logs, waiting, suspending, run folder, history and trained model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mptraining.cluster import logs
from mptraining.cluster.api import ApiServer
from mptraining.cluster.connection import HERE, Cluster, connect
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.job_events import ClusterEvent, job_events
from mptraining.cluster.job_view import JobView, by_creation, reason_text, view, with_status
from mptraining.display.html import card
from mptraining.display.text import Display
from mptraining.display.transfer import Transfer, transfer_here
from mptraining_api import events, run_folder
from mptraining_api.events import Raised
from mptraining_api.kubernetes_api import CONFIG_MAPS, JOBS, Raw
from mptraining_api.problems import Problem
from mptraining_api.run_folder import FunctionResult
from mptraining_api.status import Attempt, config_map_name

if TYPE_CHECKING:
    from mptraining.cluster.fetch import FetchRequest
    from mptraining.runs import History, Run
    from mptraining_api.resolved_job import ResolvedJob


# Time from the notice that the model is ready until worker 0 serves it.
MODEL_SECONDS = 30.0


class Job:
    """One MPTrainingJob; two are equal if they are the same object of the API server, by its uid.

    It caches no state of the job: every method queries the API server, and raises ClusterProblem if that fails.
    """

    def __init__(
        self, server: ApiServer, document: Raw, *, cluster: Cluster = HERE, warnings: Sequence[str] = ()
    ) -> None:
        metadata = document["metadata"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata.get("namespace") or server.namespace
        self.uid: str = metadata["uid"]
        self.cluster = cluster
        self.warnings = tuple(warnings)
        self.server = server.in_namespace(self.namespace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.uid == other.uid

    def __hash__(self) -> int:
        return hash(self.uid)

    def __repr__(self) -> str:
        return f"<Job {self.namespace}/{self.name}>"

    def _repr_html_(self) -> str:
        """Return the status and the curves so far; of a cluster that does not answer, the problem."""
        try:
            seen = self.status()
        except Problem as problem:
            return card(repr(self)[1:-1], lines=[str(problem)])
        try:
            panels = self.history.panels()
        except Problem:
            # The run folder or the logs may be out of reach of this user; the status is not.
            panels = []
        return seen.html(panels)

    # -- status -------------------------------------------------------------------------------------------------

    def status(self) -> JobView:
        """Return the current status; its text contains the reason and the next step."""
        return view(self.server.get(JOBS, self.name), self.server.flags)

    @property
    def attempts(self) -> list[Attempt]:
        """Return the last ten attempts, the oldest first."""
        return list(self.status().status.attempts or ())

    def events(self) -> list[ClusterEvent]:
        """Return the Kubernetes events of the job and its pods, the oldest first."""
        return job_events(self.server, self.uid)

    # -- logs ---------------------------------------------------------------------------------------------------

    def logs(self, follow: bool = False, worker: int | None = None) -> None:
        """Print the workers' logs; with `follow` until the job has ended.

        `worker` is an index; None for all. KeyboardInterrupt stops following, not the job.
        """
        try:
            for line in self.log_lines(follow=follow, worker=worker):
                print(line, flush=True)
        except KeyboardInterrupt:
            print(self._detached())

    def log_lines(
        self, *, follow: bool = False, worker: int | None = None, attempt: int | None = None, raw: bool = False
    ) -> Iterator[str]:
        """Yield the lines that `logs` prints, of one `attempt` (default: the last). `raw` keeps events as JSON.

        Raises NoLogs if no pod has such a log; if it follows, only for a worker that the job does not have.
        """
        from mptraining.cluster.follow import JobFollower, Line

        if not follow:
            job_pods = logs.pods(self.server, self.uid)
            started = [pod for pod in logs.select_pods(job_pods, attempt=attempt, worker=worker) if pod.started]
            if not started:
                raise logs.explain_no_logs(job_pods, self.status(), attempt=attempt, worker=worker)
            for pod in started:
                for text in logs.log_lines(self.server, pod):
                    yield from logs.format_line(pod, text, raw=raw)
            return
        first = attempt or self.status().status.current_attempt or 0
        with JobFollower(self.server, self.name, self.uid, worker=worker) as following:
            for update in following.updates():
                if isinstance(update, JobView):
                    logs.require_worker(update, worker)
                if isinstance(update, Line) and update.pod.attempt >= first:
                    yield from logs.format_line(update.pod, update.text, raw=raw)

    def wait(
        self,
        timeout: float | None = None,
        *,
        display: Display | None = None,
        fetch: bool = True,
        on_interrupt: Literal["Detach", "Raise"] = "Detach",
    ) -> JobView:
        """Show the job until it has ended, and `fetch` its model if it has no run folder; return its status.

        KeyboardInterrupt does not stop the job; with "Raise" it is raised. Raises StillRunning after `timeout` seconds.
        """
        from mptraining.cluster.wait import wait
        from mptraining.display.choice import display_here

        shown, keeps = display or display_here(), fetch and self.run_folder is None
        try:
            return wait(
                self.server,
                self.name,
                self.uid,
                shown,
                clock=time.monotonic,
                wall=time.time,
                timeout=timeout,
                model_waits=(lambda: self._fetch_while_waiting(shown)) if keeps else None,
            )
        except KeyboardInterrupt:
            if on_interrupt == "Raise":
                raise
            shown.say(self._detached())
            return self.status()
        finally:
            shown.close()

    def result(self, timeout: float | None = None, *, display: Display | None = None) -> Any:
        """Wait for the end like `wait`; return the value of the job's function, or raise the function's exception.

        The value is unpickled, which runs code that the run folder names: use it for run folders that you trust. The
        exception has the traceback of the job as a note; FunctionFailed replaces one that cannot be unpickled here.

        Raises StillRunning after `timeout` seconds or KeyboardInterrupt, and ClusterProblem if the job failed
        otherwise, or if its program is no function.
        """
        from mptraining.cluster.wait import StillRunning
        from mptraining.packaging.function_result import value_of

        seen = self.wait(timeout, display=display)
        if not seen.finished:
            raise StillRunning(self.name, f"still {seen.phase}")
        stored = self._function_result(seen)
        if stored is not None and stored.raised != seen.succeeded:
            return value_of(stored)
        why, step = f"the function did not return: {reason_text(seen)}", self.server.command("logs", self.name)
        if seen.succeeded:
            why = "there is no value: its program is no function, or the pod that kept the value no longer exists"
            step = "Submit the function again with output='gs://…'"
        raise ClusterProblem(self.name, why, next_step=step)

    def _function_result(self, seen: JobView) -> FunctionResult | None:
        """Return what the function returned, or raised in the last attempt; None if nothing is left of it."""
        from mptraining.cluster import fetch
        from mptraining.packaging import function_result

        here, output = fetch.cache_folder(self.uid, run_folder.FUNCTION), self.run_folder
        if output is None and not here.exists():
            pods = logs.select_pods(logs.pods(self.server, self.uid), attempt=None, worker=None)
            lines = (text for pod in pods if pod.started for text in logs.log_lines(self.server, pod))
            raised = next((event for event in map(events.parse, lines) if isinstance(event, Raised)), None)
            return FunctionResult.read(raised.result) if raised is not None else None
        if output is not None:
            request = self._fetch_request(here, run_folder.FUNCTION, overwrite=True)
            try:
                fetch.fetch_output(self.server, seen, output, request, Transfer(print), clock=time.monotonic)
            except ClusterProblem:
                if seen.succeeded:
                    raise
                # The job failed outside of the function; the status has the reason.
                return None
        stored = function_result.read(str(here))
        old = stored is not None and stored.raised and stored.attempt != seen.status.current_attempt
        return None if old else stored

    def _detached(self) -> str:
        from mptraining.cluster.wait import detached_text

        return f"{detached_text(self.server, self.name)}   In Python: mptraining.attach({self.name!r})"

    # -- changes ------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Delete the job: the workers save a checkpoint and exit. The run folder is kept."""
        self.server.delete(JOBS, self.name, uid=self.uid)

    def suspend(self) -> None:
        """Suspend the job until `resume`: the workers save a checkpoint and release their machines."""
        self.server.suspend(JOBS, self.name, True, uid=self.uid)

    def resume(self) -> None:
        """Resume the job from the last checkpoint."""
        self.server.suspend(JOBS, self.name, False, uid=self.uid)

    # -- results ------------------------------------------------------------------------------------------------

    @property
    def resolved(self) -> ResolvedJob | None:
        """Return the job of the current attempt with all defaults resolved; None before the first attempt."""
        from mptraining_api.resolve.attempt import for_attempt
        from mptraining_api.resolved_job import ResolvedJob

        status = self.server.get(JOBS, self.name).get("status") or {}
        try:
            text = str(self.server.get(CONFIG_MAPS, config_map_name(self.name))["data"][run_folder.JOB])
        except ClusterProblem:
            return None
        attempt = (status.get("attempts") or [{}])[-1]
        return for_attempt(ResolvedJob.read(text), machine=attempt.get("machine") or 0, workers=attempt.get("workers"))

    @property
    def run_folder(self) -> str | None:
        """Return the job's output.uri, else the run folder from the operator's settings; None without either."""
        seen = self.status()
        if seen.output is not None:
            return seen.output
        resolved = self.resolved
        return resolved.output if resolved is not None else None

    @property
    def history(self) -> History:
        """Return the training curves: metrics by step, over all attempts."""
        return self.run().history

    def run(self) -> Run:
        """Return the run for `mptraining.compare`, from the run folder if it is reachable.

        Otherwise it is read from the pods' logs, and what they do not have from the job's status.
        """
        from mptraining.runs import Run, history, load_run
        from mptraining_storage import storage

        folder = self.run_folder
        if folder is not None and (storage.is_remote(folder) or Path(folder, run_folder.JOB).exists()):
            return load_run(folder)
        recorded = logs.chief_events(self.server, self.uid)
        gap = "the run folder cannot be reached from here, and no pod's log is left: only the last status is known"
        return Run(
            self.name, self.resolved, None, history(with_status(recorded, self.status())), () if recorded else (gap,)
        )

    def model(self) -> Any:
        """Wait for the end of the job and load the trained keras.Model in float32.

        Raises ClusterProblem if the job failed or its model is gone, InvalidProgram if the local Keras cannot load it.
        """
        from mptraining.cluster.trained_model import load_model

        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            return load_model(self.save_model(Path(scratch, run_folder.MODEL)))

    def save_model(self, folder: str | Path) -> Path:
        """Wait for the end of the job and copy the model (model.json, model.keras, weights.npz, …) to `folder`.

        Replaces an existing folder.
        """
        from mptraining.cluster import fetch

        seen, shown = self.status(), Transfer(print)
        request = self._fetch_request(folder, run_folder.MODEL, overwrite=True)
        if not seen.finished and self.run_folder is None:
            if fetch.cache_folder(self.uid).exists():
                return fetch.fetch_cached(request, shown)
            # The pod may keep the model already, and the job does not end before it is fetched.
            with suppress(fetch.StillTraining):
                return fetch.fetch_kept(self.server, request, shown)
        if not seen.finished:
            self.wait()
        return self.fetch(folder, model_only=True, overwrite=True, display=shown)

    def fetch(
        self,
        to: str | Path | None = None,
        *,
        model_only: bool = False,
        overwrite: bool = False,
        display: Transfer | None = None,
    ) -> Path:
        """Copy the run folder, or its model alone, to the folder `to` and return it; by default a folder of the job's
        name here.

        It is read from the bucket, from a volume by a pod that is deleted afterwards, or from worker 0 of a job without
        output.uri, which then ends. An interrupted fetch leaves nothing. Raises InvalidData if `to` exists, without
        `overwrite`, and ClusterProblem if there is nothing to fetch.
        """
        from mptraining.cluster import fetch

        target = fetch.default_target(self.name, model_only=model_only) if to is None else to
        request = self._fetch_request(target, run_folder.MODEL if model_only else ".", overwrite=overwrite)
        seen, output = self.status(), self.run_folder
        with nullcontext(display) if display is not None else transfer_here() as shown:
            if output is not None:
                return fetch.fetch_output(self.server, seen, output, request, shown, clock=time.monotonic)
            if seen.finished or fetch.cache_folder(self.uid).exists():
                fetch.refuse_failed(seen)
                return fetch.fetch_cached(request, shown)
            return fetch.fetch_kept(self.server, request, shown)

    def _fetch_request(self, to: str | Path, part: str, *, overwrite: bool) -> FetchRequest:
        from mptraining.cluster.fetch import FetchRequest

        return FetchRequest(self.name, self.uid, Path(to), part, overwrite)

    def _fetch_while_waiting(self, display: Display) -> None:
        """Fetch the model to the cache while `wait` runs, when worker 0 reports that it keeps the model."""
        from mptraining.cluster import fetch

        here = fetch.cache_folder(self.uid)
        if here.exists() or fetch.cache_folder(self.uid, run_folder.FUNCTION).exists():
            return
        request = self._fetch_request(here, run_folder.MODEL, overwrite=True)
        try:
            fetched = fetch.fetch_kept(self.server, request, Transfer(display.say), seconds=MODEL_SECONDS)
        except Problem as problem:
            display.say(f"warning: the model could not be fetched: {problem}")
        else:
            display.say(f"fetched the model, as there is no run folder: {fetched}")


def attach(name: str, cluster: Cluster = HERE) -> Job:
    """Return the existing job of that name. Raises NotFound."""
    server = connect(cluster)
    return Job(server, server.get(JOBS, name), cluster=cluster)


def list_jobs(cluster: Cluster = HERE, *, all_namespaces: bool = False) -> list[Job]:
    """Return the jobs of the cluster's namespace, or of all namespaces, the oldest first."""
    server = connect(cluster)
    documents = sorted(server.items(JOBS, everywhere=all_namespaces), key=by_creation)
    return [Job(server, document, cluster=cluster) for document in documents]
