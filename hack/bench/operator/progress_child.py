"""The processes of `bench.operator.progress_cost`: an operator's replica, and the kubelet.

Each line of standard input is a request, and its response is one JSON line.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import urllib3
import yaml

from mptraining_api import events
from mptraining_api.kubernetes_api import JOBS, PODS
from mptraining_api.status import Progress
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.server import ProgressEndpoint
from mptraining_operator.progress.status import to_status
from mptraining_operator.settings import Identity, OperatorSettings
from mptraining_operator.watch import api_objects, parse
from mptraining_operator.watch.cache import Cache
from tests.testbed.nodes.node_server import Log, NodeServer

NAMESPACE = "bench"
AT_ONCE = 8
# The length of a log's end: a reading needs one Event, and a program may print between two of them.
_TAIL_LINES, _LIMIT_BYTES = 20, 64 * 1024

Answers = dict[str, Callable[[], dict[str, Any]]]


def report(step: int) -> events.Progress:
    """A Progress as the trainer prints it in a job on a GPU."""
    return events.Progress(
        time=time.time(),
        attempt=1,
        incarnation="5b7d1c9e-6a34-4d2b-9b4f-0d6d3c1f2a10",
        worker=0,
        step=step,
        total_steps=1_000_000,
        epoch=3,
        metrics={"loss": 0.1234567, "accuracy": 0.9765432, "val_loss": 0.2345678, "val_accuracy": 0.9654321},
        examples_per_second=12345.6,
        step_seconds=0.0207,
        estimated_remaining_seconds=4321.0,
        input_bound_percent=3.2,
        input_bytes_per_second=123456789.0,
        input_requests=1234,
        input_retries=0,
        learning_rate=0.001,
        loss_scale=32768.0,
        skipped_steps=0,
        gradient_norm=1.2345,
        precision="mixed_float16",
        recoveries=0,
        peak_memory_bytes=12345678901,
        device_memory_peak_bytes=12345678901,
        device_memory_used_bytes=12345678901,
        device_memory_total_bytes=16123456789,
        device_utilization_percent=97.0,
    )


class Operator:
    """The endpoint, with a cache of all jobs and pods and a writer that is idle; and the alternative, a log reader."""

    def __init__(self, kubeconfig: str) -> None:
        from kubernetes import config

        client = config.new_client_from_config(kubeconfig)
        client.rest_client.pool_manager.connection_pool_kw["maxsize"] = AT_ONCE
        self._cluster = Cluster(client)
        self._cache = Cache(time.monotonic)
        self._pods: dict[Key, str] = {}
        for page, _ in self._cluster.pages(JOBS, None):
            for each in page:
                self._cache.put_job(parse.job(msgspec.json.decode(each)))
        for page, _ in self._cluster.pages(PODS, None):
            for each in page:
                pod = msgspec.json.decode(each, type=api_objects.Pod)
                if (key := parse.owner(pod.metadata)) is not None:
                    version = parse.version_number(pod.metadata.resource_version)
                    self._cache.put_pod(key, version, parse.pod(pod))
                    self._pods[key] = pod.metadata.name
        # Writes are a separate operation, and a review must stay valid during a slow measurement.
        chosen = {"port": 0, "service": "localhost", "writesPerSecond": 0.0001, "tokenCacheSeconds": 36_000}
        settings = OperatorSettings.parse({"progress": chosen})
        identity = Identity(name="operator-0", namespace="mptraining-system")
        self._endpoint = ProgressEndpoint(settings, identity, self._cluster, self._cache, lambda: True, clock=time.time)
        document = yaml.safe_load(Path(kubeconfig).read_text(encoding="utf-8"))
        server = document["clusters"][0]["cluster"]
        self._server = server["server"]
        self._http = urllib3.PoolManager(
            maxsize=AT_ONCE,
            retries=False,
            ca_certs=server["certificate-authority"],
            headers={"Authorization": f"Bearer {document['users'][0]['user']['token']}"},
        )

    def answers(self) -> Answers:
        return {
            "ready": lambda: {"port": self._endpoint.service_port, "certificate": self._endpoint.certificate},
            "read": lambda: {"latencies": self._for_all(self._read)},
            "write": lambda: {"latencies": self._for_all(self._write)},
            "memory": lambda: {"mib": _resident_mib()},
        }

    def _for_all(self, operation: Callable[[Key], object]) -> list[float]:
        def timed(key: Key) -> float:
            began = time.perf_counter()
            operation(key)
            return time.perf_counter() - began

        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(timed, self._pods))

    def _read(self, key: Key) -> Progress:
        """Read the end of worker 0's log, and return a status from its newest Event."""
        url = f"{self._server}/api/v1/namespaces/{key.namespace}/pods/{self._pods[key]}/log"
        query = {"container": "trainer", "tailLines": str(_TAIL_LINES), "limitBytes": str(_LIMIT_BYTES)}
        answer = self._http.request("GET", url, fields=query, timeout=600)
        for line in reversed(answer.data.decode(errors="replace").splitlines()):
            found = events.parse(line)
            if isinstance(found, events.Progress | events.Finished):
                stored = self._cache.stored(key)
                assert stored is not None
                previous = Progress.read(stored.progress) if stored.progress else None
                return to_status(found, previous, time.time())
        raise RuntimeError(f"{key}: {answer.status} {answer.data[:300]!r}")

    def _write(self, key: Key) -> None:
        stored = self._cache.stored(key)
        assert stored is not None
        document = to_status(report(2), None, time.time()).to_document()
        self._cluster.write_progress(key.namespace, key.name, stored.uid, document)


class _SharedLog(Log):
    """The same log for every pod."""

    def read(self, *, follow: bool, tail: int | None, since: str) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        yield from (("", line) for line in _LINES[-(tail or 0) :])


_LINES = [report(step).to_json() for step in range(200)]


class _Kubelet(NodeServer):
    def log(self, namespace: str, pod: str) -> Log:  # noqa: ARG002
        return _SharedLog()


def _resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * resource.getpagesize() / 2**20)


def main() -> None:
    mode, place = sys.argv[1:]
    if mode == "kubelet":
        folder = Path(place)
        folder.mkdir()
        kubelet = _Kubelet(folder).__enter__()
        answers: Answers = {"ready": lambda: {"port": kubelet.port}}
    else:
        answers = Operator(place).answers()
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
