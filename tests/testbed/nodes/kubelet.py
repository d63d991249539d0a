"""A kubelet for all nodes at once, whose pods behave as a script returns. One thread acts, so that the order is
defined.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.testbed.kubernetes.rest import Object, Refused, Rest, Watch
from tests.testbed.nodes.behaviours import (
    Behaviour,
    Disrupted,
    Exit,
    Lost,
    Run,
    Script,
    Unscheduled,
    Waiting,
    keep_running,
)
from tests.testbed.nodes.pods import Pod, Pods, read

_Step = Callable[[], None]
# Errors of an overloaded API server or etcd, and conflicts with other writers.
_TRY_AGAIN = (429, 500, 503, 504)
_LOST_A_RACE = "the object has been modified"


class Kubelet:
    """Binds pods, starts them, ends them, and removes deleted ones. A context manager.

    `script` is called once for each pod, when it is first seen. A pod without a node is bound to the first node whose
    labels its selector accepts and which has the accelerators it asks for; `bind=False` leaves that to a scheduler.
    """

    def __init__(
        self, rest: Rest, script: Script = keep_running, *, bind: bool = True, namespace: str | None = None
    ) -> None:
        """`namespace` restricts it to one namespace's pods, so that tests can share a control plane."""
        self.script = script
        self._rest = rest
        self._pods = Pods(rest)
        self._bind = bind
        self._known: dict[str, Pod] = {}
        self._plans: dict[str, Behaviour] = {}
        self._leaving: set[str] = set()
        self._due: list[tuple[float, int, _Step]] = []
        self._numbers = itertools.count()
        self._inbox: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="kubelet", daemon=True)
        path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        self._watch = Watch(rest, path, self._seen)

    # -- used by tests ------------------------------------------------------------------------------------------

    def tell(self, pod: Pod, behaviour: Behaviour) -> None:
        """Replace the pod's behaviour; `Exit` and the like count `after` from now."""
        self._inbox.put(lambda: self._play(self._known.get(pod.uid, pod), behaviour))

    def tell_job(self, namespace: str, job: str, behaviour: Behaviour) -> None:
        """Replace the behaviour of all pods of the batch/v1 Job, in the order of their index."""
        for pod in self._pods.of_job(namespace, job):
            self.tell(pod, behaviour)

    def start(self) -> Self:
        self._thread.start()
        self._watch.start()
        return self

    def stop(self) -> None:
        """Stop the thread. Raises its error, if it had any."""
        self._watch.stop()
        self._stopping.set()
        self._inbox.put(lambda: None)
        self._thread.join(10)
        if self._failure is not None:
            raise self._failure

    # -- its thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                pause = self._due[0][0] - time.monotonic() if self._due else None
                try:
                    step = self._inbox.get(timeout=None if pause is None else max(0, pause))
                except queue.Empty:
                    step = heapq.heappop(self._due)[2]
                self._attempt(step)
        except BaseException as failure:  # noqa: BLE001  raised again by stop()
            self._failure = failure

    def _attempt(self, step: _Step) -> None:
        """Call the API server. A refusal because the pod is gone or has changed is expected; the watch delivers the new
        state.
        """
        try:
            step()
        except Refused as refused:
            if refused.code in _TRY_AGAIN or _LOST_A_RACE in refused.message:
                self._later(0.2, step)
            elif refused.code not in (404, 409, 422):
                raise
        except OSError:
            # A test has stopped the API server: a kubelet retries.
            self._later(0.2, step)

    def _later(self, seconds: float, step: _Step) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), step))

    def _seen(self, kind: str, whole: Object) -> None:
        self._inbox.put(lambda: self._consider(kind, whole))

    def _consider(self, kind: str, whole: Object) -> None:
        pod = read(whole)
        if kind == "DELETED":
            self._known.pop(pod.uid, None)
            self._plans.pop(pod.uid, None)
            self._leaving.discard(pod.uid)
            return
        self._known[pod.uid] = pod
        plan = self._plans.get(pod.uid)
        if plan is None:
            plan = self._plans[pod.uid] = self.script(pod)
            if isinstance(plan, Unscheduled) and not pod.node:
                self._pods.unschedulable(pod, plan.message)
        if pod.terminating:
            self._leave(pod, plan)
        elif not pod.node:
            if self._bind and not isinstance(plan, Unscheduled) and (node := self._room(pod)):
                self._pods.bind(pod, node)
        elif pod.phase == "Pending" and not pod.whole["status"].get("podIP"):
            self._begin(pod, plan)

    def _begin(self, pod: Pod, plan: Behaviour) -> None:
        if isinstance(plan, Waiting):
            self._pods.waiting(pod, plan.reason, plan.message)
        elif not isinstance(plan, Lost):
            self._pods.running(pod)
            self._play(pod, plan)

    def _play(self, pod: Pod, plan: Behaviour) -> None:
        """Start the actions that the plan has without a trigger."""
        self._plans[pod.uid] = plan
        if isinstance(plan, Run) and pod.phase == "Pending" and pod.node:
            self._pods.running(pod)
        elif isinstance(plan, Waiting):
            self._pods.waiting(pod, plan.reason, plan.message)
        elif isinstance(plan, Unscheduled):
            self._pods.unschedulable(pod, plan.message)
        elif isinstance(plan, Exit | Disrupted):
            self._later(plan.after, lambda: self._end(pod, plan))
        if pod.terminating:
            self._leave(pod, plan)  # a node that was lost has come back

    def _end(self, pod: Pod, plan: Exit | Disrupted) -> None:
        latest = self._known.get(pod.uid)
        # Another plan may have replaced it meanwhile.
        if latest is None or latest.ended or self._plans.get(pod.uid) is not plan:
            return
        if isinstance(plan, Disrupted):
            self._pods.disrupted(latest, reason=plan.reason, code=plan.code)
        elif plan.code == 0:
            self._pods.succeeded(latest, message=plan.message)
        else:
            self._pods.failed(latest, plan.code, message=plan.message)

    def _leave(self, pod: Pod, plan: Behaviour) -> None:
        if isinstance(plan, Lost) or pod.uid in self._leaving:
            return
        self._leaving.add(pod.uid)
        self._later(plan.stop_after if not pod.ended else 0, lambda: self._let_go(pod, plan))

    def _let_go(self, pod: Pod, plan: Behaviour) -> None:
        latest = self._known.get(pod.uid)
        if latest is None:
            return
        self._leaving.discard(pod.uid)
        if not latest.ended and latest.node:
            never_started = isinstance(plan, Waiting | Unscheduled) or latest.phase == "Pending"
            code = 137 if never_started else plan.stop_code
            if code:
                self._pods.failed(latest, code)
            else:
                self._pods.succeeded(latest)
        self._pods.remove(latest)
        self._leaving.add(pod.uid)

    def _room(self, pod: Pod) -> str | None:
        """Return a node that accepts the pod. Other pods' resources are not subtracted: a real scheduler does that."""
        spec = pod.whole["spec"]
        wanted = set(spec.get("nodeSelector", {}).items())
        devices = {
            name: int(amount)
            for container in spec["containers"]
            for name, amount in container.get("resources", {}).get("limits", {}).items()
            if name in ("nvidia.com/gpu", "google.com/tpu")
        }
        for node in self._rest.get("/api/v1/nodes")["items"]:
            capacity = node["status"].get("capacity", {})
            labels = set(node["metadata"].get("labels", {}).items())
            if wanted <= labels and all(int(capacity.get(name, 0)) >= amount for name, amount in devices.items()):
                return str(node["metadata"]["name"])
        return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
