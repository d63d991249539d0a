"""A sweep on a cluster: an MPTrainingSweep in the API server, whose operator runs the trials."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mptraining.cluster.api import WATCH_SECONDS, ApiServer, changes
from mptraining.cluster.connection import HERE, Cluster, connect, connect_for
from mptraining.cluster.errors import ClusterProblem, NotAllowed, NotFound, NotInstalled, Unreachable
from mptraining.cluster.wait import StillRunning
from mptraining.sweeps.view import SweepView, newly_ended
from mptraining_api.kubernetes_api import SWEEPS, Raw
from mptraining_api.spec import API_VERSION
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus

if TYPE_CHECKING:
    from mptraining.sweeps.display import SweepDisplay
    from mptraining.sweeps.result import Sweep

# The end of a timeout is looked at between two watches, and a server that does not answer is asked again after a pause.
_SHORT_WATCH_SECONDS, _RETRY_SECONDS = 5, 5.0
# Prefixes of a sweep's name, as `kubectl get -o name` and `mptj list` print it.
_KINDS = ("mptrainingsweep.mptraining.dev/", "mptrainingsweeps/", "mpts/", "sweep/")


class ClusterSweep:
    """One MPTrainingSweep. It caches no state: every method asks the API server. Raises ClusterProblem."""

    def __init__(self, server: ApiServer, name: str, uid: str) -> None:
        self.server = server
        self.name = name
        self.uid = uid

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSweep) and self.uid == other.uid

    def __hash__(self) -> int:
        return hash(self.uid)

    def __repr__(self) -> str:
        return f"<ClusterSweep {self.server.namespace}/{self.name}>"

    def view(self) -> SweepView:
        return view(self.document(), self.server.name)

    def document(self) -> Raw:
        return self.server.get(SWEEPS, self.name)

    def changes(self, seconds: int = WATCH_SECONDS) -> Iterator[SweepView]:
        """Yield the sweep now, after each change and every `seconds`, until it has ended.

        Raises NotFound if it was deleted, Unreachable if the API server does not answer.
        """
        while True:
            for document in changes(self.server, SWEEPS, self.name, self.uid, seconds):
                seen = view(document, self.server.name)
                yield seen
                if seen.finished is not None:
                    return

    def wait(self, timeout: float | None = None, *, display: SweepDisplay) -> SweepView:
        """Show the sweep until it has ended; return its last view.

        Raises StillRunning after `timeout` seconds. KeyboardInterrupt is not caught, and does not affect the sweep.
        """
        end = None if timeout is None else time.monotonic() + timeout
        last: SweepView | None = None
        silent = False
        while last is None or last.finished is None:
            try:
                for seen in self.changes(WATCH_SECONDS if timeout is None else _SHORT_WATCH_SECONDS):
                    for trial in newly_ended(last.trials if last is not None else (), seen.trials):
                        display.ended(seen, trial)
                    display.update(seen, {})
                    last, silent = seen, False
                    if end is not None and time.monotonic() >= end and seen.finished is None:
                        step = f"The sweep continues; wait again: {self.server.command('wait', f'mpts/{self.name}')}"
                        raise StillRunning(self.name, f"still {seen.phase} after {timeout:g} s", next_step=step)
            except Unreachable as problem:
                if not silent:
                    display.say(f"warning: {problem} The request is retried.")
                silent = True
                time.sleep(_RETRY_SECONDS)
        return last

    def result(self, timeout: float | None = None, *, display: SweepDisplay | None = None) -> Sweep:
        """Wait for the end like `wait`, and return the sweep with its trials."""
        from mptraining.sweeps.display import sweep_display_here
        from mptraining.sweeps.result import Sweep

        shown = display or sweep_display_here()
        try:
            return Sweep(self.wait(timeout, display=shown))
        finally:
            shown.close()

    def cancel(self) -> None:
        """Delete the sweep with the jobs of its trials; their run folders are kept."""
        self.server.delete(SWEEPS, self.name, uid=self.uid)

    def suspend(self) -> None:
        """Suspend the running trials until `resume`: they save a checkpoint and release their machines."""
        self.server.suspend(SWEEPS, self.name, True, uid=self.uid)

    def resume(self) -> None:
        self.server.suspend(SWEEPS, self.name, False, uid=self.uid)


def view(document: Mapping[str, Any], cluster: str) -> SweepView:
    """Return the view of an object in the API server. Raises ClusterProblem for one that this version cannot read."""
    metadata = document["metadata"]
    try:
        body = {key: value for key, value in document.items() if key != "status"}
        sweep = MPTrainingSweep.read(json.dumps(body))
        status = SweepStatus.read(json.dumps(document.get("status") or {}))
    except ValidationError:
        step = "Its operator may be newer: update mptraining here."
        raise ClusterProblem(str(metadata.get("name")), "the sweep cannot be read", next_step=step) from None
    return SweepView(sweep, status, f"namespace {metadata.get('namespace')} of {cluster}")


def sweep_name(text: str) -> str | None:
    """Return the name of a sweep that is written with its kind, such as mpts/digits; None for other text."""
    return next((text.removeprefix(kind) for kind in _KINDS if text.startswith(kind)), None)


def attach_sweep(name: str, cluster: Cluster = HERE) -> ClusterSweep:
    """Return the existing sweep of that name. Raises NotFound."""
    server = connect(cluster)
    plain = sweep_name(name) or name
    return ClusterSweep(server, plain, str(server.get(SWEEPS, plain)["metadata"]["uid"]))


def create_sweep(document: Mapping[str, Any], cluster: Cluster = HERE) -> ClusterSweep:
    """Create the MPTrainingSweep of a checked document. Raises ClusterProblem if the cluster rejects it."""
    # The path of the request has this version; an older one has the same fields.
    body = {**document, "apiVersion": API_VERSION, "metadata": dict(document["metadata"])}
    server = connect_for(body, cluster)
    made = server.create(SWEEPS, body)
    return ClusterSweep(server, made["metadata"]["name"], made["metadata"]["uid"])


def list_sweeps(server: ApiServer, *, everywhere: bool = False) -> list[Raw]:
    """Return the sweeps of the namespace, or of all; none for a cluster that has no sweeps, or does not show them.

    Raises ClusterProblem.
    """
    try:
        return server.items(SWEEPS, everywhere=everywhere)
    except (NotAllowed, NotFound, NotInstalled):
        # An older operator has no such resource, and some users may list only jobs.
        return []
