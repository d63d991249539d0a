"""Jobs and sweeps of a cluster as a source, with the rights of the user's own connection; nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mptraining.board.rows import STATES
from mptraining.board.sources import NO_RUNS, Source, changed_keys, folder_source
from mptraining.board.sweep_answers import cluster_sweep
from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.job import Job
from mptraining.cluster.job_events import ClusterEvent, job_events
from mptraining.cluster.job_view import JobView, advice, no_operator_text, reason_text, view
from mptraining.cluster.logs import chief_events
from mptraining.cluster.submission import waiting_job_warning
from mptraining.cluster.watch import ClusterWatch
from mptraining.runs.facts import JobFacts
from mptraining.runs.files import MemoryFiles
from mptraining.runs.reader import RunReader, run_id
from mptraining_api import run_folder
from mptraining_api.kubernetes_api import JOBS, PODS, SWEEPS, Raw
from mptraining_api.problems import Problem
from mptraining_api.status import JOB_UID, format_time, parse_time
from mptraining_storage import storage

_THREADS = 16


class ClusterJobs(Source):
    """The jobs and sweeps of a namespace, of all namespaces, or the jobs of the given names.

    The run folder of a job is read if it is reachable from here: while the job runs, and once after its end.
    """

    # What a watch has seen is taken over; a folder is listed as often as its own source says.
    seconds = 1.0

    def __init__(
        self,
        server: ApiServer,
        *,
        clock: Callable[[], float],
        names: Sequence[str] = (),
        everywhere: bool = False,
        flags: Sequence[str] = (),
        read_logs: bool = False,
    ) -> None:
        """`read_logs` reads the curves of a job without a reachable run folder from the logs of its pods."""
        scope = "all namespaces" if everywhere else f"namespace {server.namespace}"
        super().__init__(f"{', '.join(names) if names else 'jobs'} in {scope} of {server.name}")
        self._server = server
        self._clock = clock
        self._names = tuple(names)
        self._flags = tuple(flags)
        self._read_logs = read_logs
        self._job_watch = ClusterWatch(server, JOBS, clock=clock, everywhere=everywhere)
        self._sweep_watch = ClusterWatch(server, SWEEPS, clock=clock, everywhere=everywhere, optional=True)
        self._watches = [self._job_watch] if names else [self._job_watch, self._sweep_watch]
        self._following = False
        # The version of a job and the facts in its row, by uid; and its job.json, which never changes.
        self._known: dict[str, tuple[str, JobFacts]] = {}
        self._resolved: dict[str, Mapping[str, Any]] = {}
        self._jobs: dict[str, JobFacts] = {}
        self._folders: dict[str, Source] = {}
        # The time of the next listing, by run folder and start of its job; a job that has ended has none.
        self._next: dict[tuple[str | None, float], float] = {}
        self._from_logs: dict[str, RunReader] = {}

    def start(self) -> None:
        self._following = True
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        for watch in self._watches:
            watch.stop()

    def runs(self) -> Mapping[str, RunReader]:
        folders = list(self._folders.values())
        return self._from_logs | {key: reader for folder in folders for key, reader in folder.runs().items()}

    def jobs(self) -> Mapping[str, JobFacts]:
        """Return the jobs by the identifiers of their rows: that of the run folder if the job has one."""
        return self._jobs

    def refresh(self) -> set[str]:
        """Take over changed jobs and sweeps and read the run folders that are due; return the changed rows."""
        if not self._following:
            for watch in self._watches:
                watch.list()
        problems = [watch.problem for watch in self._watches]
        documents = [item for item in self._job_watch.objects() if not self._names or _name(item) in self._names]
        missing = [name for name in self._names if name not in map(_name, documents)]
        if missing and not problems[0]:
            problems.append(f"there is no job {', '.join(missing)}")
        before, self._jobs = self._jobs, self._rows(documents)
        changed = changed_keys(before, self._jobs) | self._take_sweeps(problems) | self._refresh_folders()
        self.problem = " ".join(filter(None, problems)) or None
        if self._read_logs:
            self._read_from_logs(documents)
        return changed

    def job(self, run_id: str) -> dict[str, Any] | None:
        facts = self._jobs.get(run_id)
        if facts is None:
            return None
        server = self._server.in_namespace(facts.namespace)
        seen = view(server.get(JOBS, facts.name))
        texts = [reason_text(seen), advice(seen), no_operator_text(seen, self._clock())]
        texts.append(waiting_job_warning(server, seen))
        return {
            "phase": seen.phase,
            "state": STATES.get(seen.phase, "Waiting"),
            "conditions": [condition.to_document() for condition in seen.status.conditions or ()],
            "pods": [_pod(pod) for pod in server.items(PODS, labelSelector=f"{JOB_UID}={seen.uid}")],
            "events": self._events(server, seen),
            "why": ". ".join(text.rstrip(".") for text in texts if text) or None,
        }

    def _events(self, server: ApiServer, seen: JobView) -> list[dict[str, Any]]:
        try:
            events = job_events(server, seen.uid)
        except ClusterProblem as problem:
            events = [ClusterEvent(format_time(self._clock()), "", "Warning", "NotReadable", str(problem))]
        fields = ("type", "reason", "message", "about", "count")
        return [{"time": _seconds(event.time)} | {name: getattr(event, name) for name in fields} for event in events]

    def _rows(self, documents: Sequence[Raw]) -> dict[str, JobFacts]:
        with ThreadPoolExecutor(_THREADS) as pool:
            facts = list(pool.map(self._facts, documents))
        rows: dict[str, JobFacts] = {}
        # If several jobs share a run folder, the newest has its row.
        created = [str(item["metadata"].get("creationTimestamp")) for item in documents]
        for _, job in sorted(zip(created, facts, strict=True), key=lambda pair: pair[0]):
            key = run_id(job.folder or _full_name(job))
            if key in rows:
                rows[run_id(_full_name(rows[key]))] = rows[key]
            rows[key] = job
        return rows

    def _facts(self, document: Raw) -> JobFacts:
        uid, version = str(document["metadata"]["uid"]), str(document["metadata"].get("resourceVersion"))
        known, facts = self._known.get(uid, ("", None))
        if facts is not None and known == version and uid in self._resolved:
            return facts
        seen = view(document)
        resolved = self._job_json(document, seen)
        folder = seen.output or (resolved or {}).get("output")
        new = job_facts(seen, folder=folder, resolved=resolved, flags=self._flags)
        # Facts that are the same object have not changed.
        if facts is None or facts != new:
            facts = new
        self._known[uid] = version, facts
        return facts

    def _job_json(self, document: Raw, seen: JobView) -> Mapping[str, Any] | None:
        resolved = self._resolved.get(seen.uid)
        if resolved is None and seen.status.current_attempt:
            try:
                job = Job(self._server, document).resolved
            except (ClusterProblem, ValueError):
                # The user may see jobs without seeing ConfigMaps, or the job is of a newer version.
                job = None
            resolved = {} if job is None else job.to_document()
            if job is not None or seen.finished:
                # Otherwise the next refresh asks again: the Job may not exist yet.
                self._resolved[seen.uid] = resolved
        return resolved

    def _take_sweeps(self, problems: list[str | None]) -> set[str]:
        before, self._sweeps = self._sweeps, {}
        for document in self._sweep_watch.objects():
            try:
                sweep = cluster_sweep(document, self._server.name, before, self._flags)
            except ClusterProblem as problem:
                problems.append(str(problem))
            else:
                self._sweeps[sweep.sweep_id] = sweep
        return changed_keys(before, self._sweeps)

    def _refresh_folders(self) -> set[str]:
        now = self._clock()
        due = [job for job in self._jobs.values() if job.folder and self._next.get(_run_of(job), now) <= now]
        with ThreadPoolExecutor(_THREADS) as pool:
            return {key for changed in pool.map(self._refresh_folder, due) for key in changed}

    def _refresh_folder(self, job: JobFacts) -> set[str]:
        """Read the run folder of a job. One that cannot be read is no problem: the row shows what the cluster knows."""
        where = str(job.folder)
        source = self._folders.get(where)
        try:
            if source is None and (
                storage.is_remote(where) or Path(storage.local_path(where), run_folder.JOB).exists()
            ):
                source = self._folders[where] = folder_source(where)
        except (Problem, OSError):
            # Such as a path of the pods that this user may not read here.
            source = None
        changed = source.refresh() if source else set()
        read = source is None or source.problem in (None, NO_RUNS)
        ended = job.phase in ("Succeeded", "Failed") and read
        self._next[_run_of(job)] = math.inf if ended else self._clock() + (source or self).seconds
        return changed

    def _read_from_logs(self, documents: Sequence[Raw]) -> None:
        uids = {(item["metadata"]["namespace"], _name(item)): str(item["metadata"]["uid"]) for item in documents}
        reachable = self.runs().keys()
        for key, job in self._jobs.items():
            # A log that was refused or is gone leaves its job without curves.
            if key not in reachable:
                with suppress(Problem):
                    self._from_logs[key] = self._reader_of_logs(job, uids[job.namespace, job.name])

    def _reader_of_logs(self, job: JobFacts, uid: str) -> RunReader:
        content = {}
        for events in chief_events(self._server.in_namespace(job.namespace), uid):
            name = run_folder.events_file(events[0].attempt, events[0].incarnation, 0, 0)
            content[name] = "".join(event.to_json() + "\n" for event in events).encode()
        if job.resolved:
            content[run_folder.JOB] = msgspec.json.encode(job.resolved)
        reader = RunReader(MemoryFiles(job.folder or _full_name(job), content), job.name)
        reader.refresh()
        return reader


def job_facts(
    seen: JobView, *, folder: str | None, resolved: Mapping[str, Any] | None, flags: Sequence[str]
) -> JobFacts:
    """Return what the row of a job shows."""
    status = seen.status
    progress, batch = status.progress, status.resolved_value("batchSize")
    shown: dict[str, Any] = {}
    values: dict[str, Any] = {
        "namespace": seen.namespace,
        "outcome": seen.ended_by.reason if seen.ended_by else None,
        "policy": status.resolved_value("precision"),
        "strategy": status.resolved_value("strategy"),
        "replicas": status.replicas_in_sync,
        "globalBatchSize": int(batch) if batch and batch.isdecimal() else None,
        "accelerator": (seen.spec.get("accelerator") or {}).get("type"),
        "restarts": max(0, (status.current_attempt or 1) - 1),
        "startTime": _seconds(status.start_time),
    }
    if status.start_time and status.completion_time:
        values["totalSeconds"] = _seconds(status.completion_time) - _seconds(status.start_time)
    if progress is not None:
        shown = {
            "step": progress.step,
            "totalSteps": progress.total_steps,
            "percent": progress.percent_complete,
            "remainingSeconds": None if seen.finished else progress.estimated_remaining_seconds,
        }
        values |= {
            "examplesPerSecond": progress.examples_per_second,
            "inputBoundPercent": progress.input_bound_percent,
            "recoveries": progress.recoveries,
        }
        values |= {f"last:{metric.name}": _number(metric.value) for metric in progress.metrics or ()}
    return JobFacts(
        namespace=seen.namespace,
        name=seen.name,
        phase=seen.phase,
        reason=reason_text(seen),
        folder=folder,
        resolved=resolved or None,
        progress={key: value for key, value in shown.items() if value is not None} or None,
        values={key: value for key, value in values.items() if value is not None},
        flags=tuple(flags),
    )


def _pod(document: Raw) -> dict[str, Any]:
    status = document.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [state for container in containers for state in (container.get("state") or {}).values() if state]
    # Such as ImagePullBackOff, OOMKilled, Evicted; of a pod without a node the reason why it has none.
    reasons = [state["reason"] for state in states if state.get("reason") not in (None, "Completed", "PodInitializing")]
    reasons += [
        f"{condition.get('reason')}: {condition.get('message', '')}"
        for condition in status.get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition.get("status") == "False"
    ]
    return {
        "name": _name(document),
        "phase": str(status.get("phase") or "Pending"),
        "node": (document.get("spec") or {}).get("nodeName"),
        "reason": status.get("reason") or next(iter(reasons), None),
        "restarts": sum(int(container.get("restartCount") or 0) for container in containers),
    }


def _name(document: Raw) -> str:
    return str(document["metadata"]["name"])


def _full_name(job: JobFacts) -> str:
    return f"{job.namespace}/{job.name}"


def _run_of(job: JobFacts) -> tuple[str | None, float]:
    """Return what tells a job from one that was created again with the same run folder."""
    return job.folder, job.values.get("startTime") or 0.0


def _seconds(time: str | None) -> float:
    """Return a timestamp of the API server in seconds since 1970; 0 if it is none."""
    try:
        return parse_time(time) if time else 0.0
    except ValueError:
        return 0.0


def _number(text: str) -> float | str:
    try:
        value = float(text)
    except ValueError:
        return text
    # JSON has no number for NaN.
    return value if math.isfinite(value) else text
