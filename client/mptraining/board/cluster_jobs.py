"""Jobs of a cluster as rows and pages, with the rights of the user's own connection; nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mptraining.board.details import job_commands
from mptraining.board.sources import Source, folder_source
from mptraining.board.sweep_answers import ShownSweep, cluster_sweep
from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import ClusterProblem, NotFound
from mptraining.cluster.job import Job
from mptraining.cluster.job_events import job_events
from mptraining.cluster.job_view import JobView, advice, no_operator_text, reason_text, view
from mptraining.cluster.logs import chief_events
from mptraining.cluster.submit import waiting_job_warning
from mptraining.runs.facts import JobFacts
from mptraining.runs.files import MemoryFiles
from mptraining.runs.reader import RunReader, run_id
from mptraining.sweeps.cluster import list_sweeps
from mptraining_api import run_folder
from mptraining_api.kubernetes_api import JOBS, PODS, Raw
from mptraining_api.problems import Problem
from mptraining_api.status import JOB_UID, parse_time
from mptraining_storage import storage

JOBS_SECONDS = 3.0
# The list has every trial of every sweep: up to 1 MB for each.
SWEEPS_SECONDS = 15.0


class ClusterJobs:
    """The jobs of a namespace, of all namespaces, or those of the given names; a source with `jobs` and `job`.

    The run folder of a job is read if it is reachable from here.
    """

    seconds = JOBS_SECONDS

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
        """With `read_logs`, the curves of a job without a reachable run folder come from the logs of its pods."""
        place = "all namespaces" if everywhere else f"namespace {server.namespace}"
        self.where = f"{', '.join(names) if names else 'jobs'} in {place} of {server.name}"
        self.problem: str | None = None
        self._server = server
        self._clock = clock
        self._names = tuple(names)
        self._everywhere = everywhere
        self._flags = tuple(flags)
        self._read_logs = read_logs
        self._from_logs: dict[str, RunReader] = {}
        self._jobs: dict[str, JobFacts] = {}
        # job.json of each job by its uid; it never changes.
        self._resolved: dict[str, Mapping[str, Any]] = {}
        self._folders: dict[str, Source] = {}
        self._sweeps: dict[str, ShownSweep] = {}
        # When the sweeps were read, by the clock, and what is wrong with those that cannot be shown.
        self._sweeps_read: float | None = None
        self._unreadable: str | None = None

    def runs(self) -> Mapping[str, RunReader]:
        found = {id: each for folder in list(self._folders.values()) for id, each in folder.runs().items()}
        return self._from_logs | found

    def jobs(self) -> Mapping[str, JobFacts]:
        """Return the jobs by the identifiers of their rows: that of the run folder if the job has one."""
        return self._jobs

    def sweeps(self) -> Mapping[str, ShownSweep]:
        return self._sweeps

    def refresh(self) -> set[str]:
        """Read the jobs and those of their run folders that are reachable; return the changed rows."""
        try:
            documents = self._documents()
            changed_sweeps = self._read_sweeps()
        except Problem as problem:
            self.problem = str(problem)
            return set()
        found: dict[str, JobFacts] = {}
        uids: dict[str, str] = {}
        # Of jobs with the same run folder the newest has its row.
        for document in sorted(documents, key=lambda each: str(each["metadata"].get("creationTimestamp"))):
            facts = self._facts(document)
            id = run_id(facts.folder or _place(facts))
            if id in found:
                found[run_id(_place(found[id]))] = found[id]
            found[id], uids[id] = facts, str(document["metadata"]["uid"])
        changed = changed_sweeps | {id for id in {*found, *self._jobs} if found.get(id) != self._jobs.get(id)}
        self._jobs = found
        changed |= self._refresh_folders({each.folder for each in found.values() if each.folder})
        if self._read_logs:
            reachable = self.runs().keys() - self._from_logs.keys()
            for id in uids.keys() - reachable:
                # A log that was refused or is gone leaves its job without curves.
                with suppress(Problem):
                    self._from_logs[id] = self._reader_of_logs(found[id], uids[id])
        return changed

    def _read_sweeps(self) -> set[str]:
        """Read the sweeps, unless the board shows chosen jobs alone; return the changed ones."""
        if self._names:
            return set()
        now = self._clock()
        if self._sweeps_read is not None and 0 <= now - self._sweeps_read < SWEEPS_SECONDS:
            self.problem = self._unreadable
            return set()
        try:
            documents = list_sweeps(self._server, everywhere=self._everywhere)
        except Problem as problem:
            # The jobs have been read, and are shown.
            self.problem = str(problem)
            return set()
        before, found, unreadable = self._sweeps, {}, []
        for document in documents:
            try:
                each = cluster_sweep(document, self._server.name, before, self._flags)
            except ClusterProblem as problem:
                unreadable.append(str(problem))
            else:
                found[each.id] = each
        self._sweeps, self._sweeps_read = found, now
        self.problem = self._unreadable = " ".join(unreadable) or None
        return {id for id in {*before, *self._sweeps} if before.get(id) is not self._sweeps.get(id)}

    def job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the answer of /api/job; None for a job that is not among those of this source. Raises Problem."""
        listed = next(
            ((id, each) for id, each in self._jobs.items() if (each.namespace, each.name) == (namespace, name)), None
        )
        if listed is None:
            return None
        id, facts = listed
        page = job_page(self._server.in_namespace(namespace), name, clock=self._clock, flags=self._flags)
        return None if page is None else page | {"run": id if facts.folder and id in self.runs() else None}

    def _documents(self) -> list[Raw]:
        if not self._names:
            found = self._server.items(JOBS, everywhere=self._everywhere)
            self.problem = None
            return found
        found, missing = [], []
        for name in self._names:
            try:
                found.append(self._server.get(JOBS, name))
            except NotFound:
                missing.append(name)
        self.problem = f"there is no job {', '.join(missing)}" if missing else None
        return found

    def _facts(self, document: Raw) -> JobFacts:
        seen = view(document)
        resolved = self._resolved.get(seen.uid)
        if resolved is None and seen.status.current_attempt:
            try:
                found = Job(self._server, document).resolved
            except (ClusterProblem, ValueError):
                # The user may see jobs without seeing ConfigMaps, or the job is of a newer version.
                found = None
            resolved = {} if found is None else found.to_document()
            if found is not None or seen.finished:
                # Otherwise the next refresh asks again: the Job may not exist yet.
                self._resolved[seen.uid] = resolved
        folder = seen.output or (resolved or {}).get("output")
        return job_facts(seen, folder=folder, resolved=resolved, flags=self._flags)

    def _refresh_folders(self, folders: set[str]) -> set[str]:
        # The folder of a deleted job stays.
        for where in folders - self._folders.keys():
            try:
                if storage.is_remote(where) or Path(storage.local_path(where), run_folder.JOB).exists():
                    self._folders[where] = folder_source(where)
            except (Problem, OSError):
                # Such as a path of the pods that this user may not read here.
                continue
        # A folder without an answer is no problem of the board: its job's row shows what the cluster knows.
        return {id for each in self._folders.values() for id in each.refresh()}

    def _reader_of_logs(self, facts: JobFacts, uid: str) -> RunReader:
        content = {}
        for events in chief_events(self._server.in_namespace(facts.namespace), uid):
            name = run_folder.events_file(events[0].attempt, events[0].incarnation, 0, 0)
            content[name] = "".join(each.to_json() + "\n" for each in events).encode()
        if facts.resolved:
            content[run_folder.JOB] = msgspec.json.encode(facts.resolved)
        reader = RunReader(MemoryFiles(facts.folder or _place(facts), content), facts.name)
        reader.refresh()
        return reader


def job_page(
    server: ApiServer, name: str, *, clock: Callable[[], float], flags: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Return the answer of /api/job but for `run`; None if there is no such job. Raises Problem."""
    try:
        seen = view(server.get(JOBS, name))
    except NotFound:
        return None
    found = [reason_text(seen), advice(seen), no_operator_text(seen, clock()), waiting_job_warning(server, seen)]
    return {
        "phase": seen.phase,
        "conditions": [each.to_document() for each in seen.status.conditions or ()],
        "pods": [_pod(each) for each in server.items(PODS, labelSelector=f"{JOB_UID}={seen.uid}")],
        "events": _events(server, seen, clock),
        "why": ". ".join(each.rstrip(".") for each in found if each) or None,
        "commands": job_commands(server.namespace, name, ended=seen.finished, flags=flags),
    }


def _events(server: ApiServer, seen: JobView, clock: Callable[[], float]) -> list[dict[str, Any]]:
    try:
        found = job_events(server, seen.uid)
    except ClusterProblem as problem:
        return [_event(clock(), "Warning", "NotReadable", str(problem), "", 1)]
    return [_event(_seconds(each.time), each.type, each.reason, each.message, each.about, each.count) for each in found]


def _place(facts: JobFacts) -> str:
    return f"{facts.namespace}/{facts.name}"


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
        values |= {f"last:{each.name}": _number(each.value) for each in progress.metrics or ()}
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
    states = [state for each in containers for state in (each.get("state") or {}).values() if state]
    conditions = [each for each in status.get("conditions") or () if each.get("status") == "False"]
    # Such as ImagePullBackOff, OOMKilled, Evicted; of a pod without a node the reason why it has none.
    found = [state["reason"] for state in states if state.get("reason") not in (None, "Completed", "PodInitializing")]
    found += [
        f"{each.get('reason')}: {each.get('message', '')}" for each in conditions if each["type"] == "PodScheduled"
    ]
    return {
        "name": document["metadata"]["name"],
        "phase": str(status.get("phase") or "Pending"),
        "node": (document.get("spec") or {}).get("nodeName"),
        "reason": status.get("reason") or next(iter(found), None),
        "restarts": sum(int(each.get("restartCount") or 0) for each in containers),
    }


def _event(time: float | None, type: str, reason: str, message: str, about: str, count: int) -> dict[str, Any]:
    return {"time": time, "type": type, "reason": reason, "message": message, "object": about, "count": count}


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
