"""A pod whose container really runs: its command, as a process of this machine, with the pod's own environment.

For pods of one worker: names of other pods do not resolve here. Mounted are the resolved job and the
termination log, as files of a folder; reports of progress are lost.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from tests.testbed.kubernetes.rest import Rest
from tests.testbed.nodes.pods import Pod, Pods
from tests.testbed.processes import Server

_JOB_FILE, _TERMINATION_LOG = "MPTRAINING_JOB_FILE", "MPTRAINING_TERMINATION_LOG"
_PROGRESS = "MPTRAINING_PROGRESS_"
_JOB_VOLUME = "mptraining-job"


class PodProcess:
    """Starts the container of `pod`, which must have a node; `folder` is its own. A context manager."""

    def __init__(self, rest: Rest, pod: Pod, folder: Path) -> None:
        self._pods = Pods(rest)
        self._pod = pod
        folder.mkdir(parents=True)
        self._last_words = folder / "termination-log"
        (container,) = pod.whole["spec"]["containers"]
        (name,) = [each["configMap"]["name"] for each in pod.whole["spec"]["volumes"] if each["name"] == _JOB_VOLUME]
        namespace = pod.whole["metadata"]["namespace"]
        mounted = rest.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")["data"]
        job_file = folder / "job.json"
        job_file.write_text(mounted["job.json"], encoding="utf-8")
        environment = {each["name"]: _value(each, pod) for each in container["env"]}
        environment = {name: value for name, value in environment.items() if not name.startswith(_PROGRESS)}
        environment |= {_JOB_FILE: str(job_file), _TERMINATION_LOG: str(self._last_words)}
        environment["JOB_COMPLETION_INDEX"] = str(pod.index or 0)
        command = [sys.executable if each == "python" else each for each in container["command"]]
        self._server = Server(command, log=folder / "container.log", environment=environment)
        self._pods.running(pod)

    @property
    def log(self) -> str:
        """Return the container's output so far."""
        return self._server.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, *, seconds: float = 180) -> None:
        """Wait until its log has that text. Raises NotStarted when it ends before."""
        self._server.wait_until(lambda: text in self.log, seconds=seconds)

    def end(self, *, terminate: bool = False, seconds: float = 180) -> int:
        """Wait for its end and write the pod's status, as a kubelet does; return the exit code. `terminate` sends
        SIGTERM first, and removes the pod afterwards.
        """
        if terminate:
            self._server.signal(signal.SIGTERM)
        code = self._server.wait(seconds)
        words = self._last_words.read_text(encoding="utf-8") if self._last_words.exists() else ""
        if code:
            self._pods.failed(self._pod, code, message=words)
        else:
            self._pods.succeeded(self._pod, message=words)
        if terminate:
            self._pods.remove(self._pod)
        return code

    def __enter__(self) -> PodProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(seconds=0)


def _value(variable: dict[str, Any], pod: Pod) -> str:
    """Return the value of a variable in the container's `env`; of the downward API the pod's uid, and "" for limits."""
    field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return pod.uid if field == "metadata.uid" else str(variable.get("value", ""))
