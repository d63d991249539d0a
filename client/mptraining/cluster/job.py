"""A job of a cluster in the hand of a user: what it does, says, and leaves behind."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptraining.cluster.api import CONFIG_MAPS, EVENTS, JOBS, ApiServer, Raw
from mptraining.cluster.connection import HERE, Where, connect
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.job_view import JobView, view, why
from mptraining.display.text import Display
from mptraining_api import run_folder
from mptraining_api import status as api_status
from mptraining_api.status import Attempt

if TYPE_CHECKING:
    pass
    from mptraining.cluster.logs import WorkerPod
    from mptraining.runs import History, Run
    from mptraining_api.resolved_job import ResolvedJob


@dataclass(frozen=True, slots=True, order=True)
class ClusterEvent:
    """One event, `count` times until `time` (RFC 3339, UTC); `about` as `Pod flowers-1-0-x`."""

    time: str
    about: str
    type: str
    reason: str
    message: str
    count: int = 1

    def __str__(self) -> str:
        often = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.time}  {self.about}  {self.reason}: {self.message}{often}"


def job_events(server: ApiServer, name: str, uid: str) -> list[ClusterEvent]:
    """About the job, its Indexed Jobs and their pods, the oldest first. The API server keeps them for an hour."""
    found: list[Mapping[str, Any]] = list(server.items(EVENTS, fieldSelector=f"involvedObject.uid={uid}"))
    for kind in ("Job", "Pod"):
        found += of_children(server.items(EVENTS, fieldSelector=f"involvedObject.kind={kind}"), name)
    return sorted(map(_read, found))


def of_children(documents: Iterable[Mapping[str, Any]], job: str) -> list[Mapping[str, Any]]:
    """Those about `<job>-<attempt>` and `<job>-<attempt>-<index>-<random>`."""
    theirs = re.compile(rf"{re.escape(job)}-\d+(-\d+-[a-z0-9]+)?")
    return [each for each in documents if theirs.fullmatch(each.get("involvedObject", {}).get("name", ""))]


def _read(document: Mapping[str, Any]) -> ClusterEvent:
    about = document.get("involvedObject") or {}
    time = document.get("lastTimestamp") or document.get("eventTime") or document["metadata"].get("creationTimestamp")
    return ClusterEvent(
        time=str(time or ""),
        about=f"{about.get('kind', '')} {about.get('name', '')}",
        type=str(document.get("type") or "Normal"),
        reason=str(document.get("reason") or ""),
        message=" ".join(str(document.get("message") or "").split()),
        count=int(document.get("count") or 1),
    )


# From the word that the model is kept until the process that keeps it answers.
MODEL_SECONDS = 30.0


class Job(dict[str, str | None]):
    """One MPTrainingJob. Also the dict that `tensorflow_cloud.run` returns, with `job_id` and `docker_image`.

    Holds no state of the job: every method asks the cluster anew, and raises ClusterProblem where that refuses.
    """

    def __init__(self, server: ApiServer, document: Raw, *, where: Where = HERE, warnings: Sequence[str] = ()) -> None:
        metadata, spec = document["metadata"], document.get("spec") or {}
        super().__init__(job_id=metadata["name"], docker_image=(spec.get("podTemplate") or {}).get("image"))
        self.name: str = metadata["name"]
        self.namespace: str = metadata.get("namespace") or server.namespace
        self.uid: str = metadata["uid"]
        self.where = where
        self.warnings = tuple(warnings)
        self.server = server.within(self.namespace)

    def __repr__(self) -> str:
        return f"<Job {self.namespace}/{self.name}>"

    # -- how it stands ------------------------------------------------------------------------------------------

    def status(self) -> JobView:
        """How the job stands now; printed, it says why and what to do."""
        return view(self.server.get(JOBS, self.name))

    @property
    def attempts(self) -> list[Attempt]:
        """The last ten, the oldest first."""
        return list(self.status().status.attempts or ())

    def events(self) -> list[ClusterEvent]:
        """What Kubernetes says about the job and its pods, the oldest first."""
        pass

        return job_events(self.server, self.name, self.uid)

    # -- what it says -------------------------------------------------------------------------------------------

    def logs(self, follow: bool = False, worker: int | None = None) -> None:
        """Prints what the workers said; with `follow` also what they are going to say, until the job has ended.

        `worker` is an index; None for all. An interrupt ends the following, not the job.
        """
        try:
            for line in self.log_lines(follow=follow, worker=worker):
                print(line, flush=True)
        except KeyboardInterrupt:
            print(self._detached())

    def log_lines(
        self, *, follow: bool = False, worker: int | None = None, attempt: int | None = None, raw: bool = False
    ) -> Iterator[str]:
        """The same as an iterator, of one `attempt` (default: the last). `raw` leaves events as JSON."""
        from mptraining.cluster import logs as cluster_logs
        from mptraining.cluster.follow import Following, Line

        if not follow:
            for pod in cluster_logs.chosen(cluster_logs.pods(self.server, self.uid), attempt=attempt, worker=worker):
                if pod.started:
                    for text in cluster_logs.lines(self.server, pod):
                        yield from cluster_logs.readable(pod, text, raw=raw)
            return
        first = attempt or self.status().status.current_attempt or 0
        with Following(self.server, self.name, self.uid, worker=worker) as following:
            for update in following.updates():
                if isinstance(update, Line) and update.pod.attempt >= first:
                    yield from cluster_logs.readable(update.pod, update.text, raw=raw)

    def wait(self, timeout: float | None = None, *, display: Display | None = None) -> JobView:
        """Shows the job until it has ended, and fetches a model that has no run folder; returns how the job stands.

        An interrupt detaches: the job goes on. Raises StillRunning after `timeout` seconds.
        """
        from mptraining.display.choice import display_here

        shown = display or display_here()
        try:
            return self.follow(shown, timeout=timeout, fetch=True)
        except KeyboardInterrupt:
            shown.say(self._detached())
            return self.status()

    def follow(self, display: Display, *, timeout: float | None = None, fetch: bool = False) -> JobView:
        """As `wait`, on that display; an interrupt comes through. Without `fetch` a kept model is left where it is."""
        from mptraining.cluster.wait import wait

        keeps = fetch and self.run_folder is None
        try:
            return wait(
                self.server,
                self.name,
                self.uid,
                display,
                clock=time.monotonic,
                wall=time.time,
                timeout=timeout,
                model_waits=(lambda pod: self._fetch(pod, display)) if keeps else None,
            )
        finally:
            display.close()

    def _detached(self) -> str:
        from mptraining.cluster.wait import detached

        return f"{detached(self.name, self.where.flags())}   In Python: mptraining.attach({self.name!r})"

    # -- what one does with it ----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Deletes the job: the workers save a checkpoint and leave. The run folder stays."""
        self.server.delete(JOBS, self.name, uid=self.uid)

    def suspend(self) -> None:
        """The workers save a checkpoint and give their machines back, until `resume`."""
        self._suspend(True)

    def resume(self) -> None:
        """Goes on from the last checkpoint."""
        self._suspend(False)

    def _suspend(self, value: bool) -> None:
        patch = {"metadata": {"uid": self.uid}, "spec": {"runPolicy": {"suspend": value}}}
        self.server.patch(JOBS, self.name, patch)

    # -- what it leaves behind ----------------------------------------------------------------------------------

    @property
    def resolved(self) -> ResolvedJob | None:
        """The job with every default decided; None before its first attempt."""
        from mptraining_api.resolved_job import ResolvedJob

        try:
            document = self.server.get(CONFIG_MAPS, api_status.config_map(self.name))
        except ClusterProblem:
            return None
        return ResolvedJob.read(document["data"][run_folder.JOB])

    @property
    def run_folder(self) -> str | None:
        """The job's own output.uri, else what the operator's settings gave it; None for neither."""
        seen = self.status()
        if seen.output is not None:
            return seen.output
        resolved = self.resolved
        return resolved.output if resolved is not None else None

    @property
    def history(self) -> History:
        """The training curves: metrics by step, over all attempts."""
        return self.run().history

    def run(self) -> Run:
        """The run as `mptraining.compare` takes it: from the run folder, where this machine reaches it, else from what
        the pods that are still there have said.
        """
        from mptraining.cluster import logs as cluster_logs
        from mptraining.runs import Run, history, load_run
        from mptraining_records.storage import storage

        folder = self.run_folder
        if folder is not None and (storage.is_remote(folder) or Path(folder, run_folder.JOB).exists()):
            return load_run(folder)
        told = history(cluster_logs.chief_events(self.server, self.uid))
        gaps = () if told.points else ("the run folder is not reached from here, and no pod's log is left",)
        return Run(self.name, self.resolved, None, told, gaps)

    def model(self) -> Any:
        """The trained keras.Model in this process, in float32; waits for the end of the job first.

        Raises ClusterProblem when the job failed or its model is gone, InvalidProgram when Keras here cannot make it.
        """
        from mptraining.cluster.model import load

        with tempfile.TemporaryDirectory(prefix="mptraining-") as scratch:
            return load(self.save_model(Path(scratch, run_folder.MODEL)))

    def save_model(self, folder: str | Path) -> Path:
        """The model's files (model.json, model.keras, weights.npz, …) in `folder`; returns that. Waits as `model`."""
        from mptraining.cluster import model as cluster_model

        target, output = Path(folder), self.run_folder
        if output is None:
            return cluster_model.copied(self._kept_model(), target)
        seen = self.status()
        self._must_have_succeeded(seen if seen.finished else self.wait())
        return cluster_model.from_run_folder(output, target)

    def _kept_model(self) -> Path:
        """The model of a job without run folder, on this machine: fetched before, or now."""
        from mptraining.cluster import api
        from mptraining.cluster import model as cluster_model

        here = cluster_model.cached(self.uid)
        if here.exists():
            return here
        seen = self.status()
        pod = None if seen.finished else cluster_model.keeper(self.server, self.uid)
        if pod is not None:
            try:
                return cluster_model.from_pod(self.server, pod, here)
            except api.CommandFailed:
                pass  # it trains yet
        if not seen.finished:
            seen = self.wait()
        self._must_have_succeeded(seen)
        if not here.exists():
            raise cluster_model.lost(self.name, finished=seen.finished)
        return here

    def _fetch(self, pod: WorkerPod, display: Display) -> None:
        """While somebody waits for the end: the pod says that it keeps the model."""
        from mptraining.cluster import model as cluster_model

        here = cluster_model.cached(self.uid)
        if here.exists():
            return
        try:
            cluster_model.from_pod(self.server, pod, here, timeouts=MODEL_SECONDS, say=display.say)
        except ClusterProblem as problem:
            display.say(f"warning: the model could not be fetched: {problem}")
        else:
            display.say(f"fetched the model, as there is no run folder: {here}")

    def _must_have_succeeded(self, seen: JobView) -> None:
        if seen.finished and not seen.succeeded:
            raise ClusterProblem(self.name, f"there is no model, the job has failed: {why(seen)}")


def attach(name: str, where: Where = HERE) -> Job:
    """The job of that name, also after this program was restarted. Raises NotFound."""
    server = connect(where)
    return Job(server, server.get(JOBS, name), where=where)
