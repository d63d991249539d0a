"""Coordination of the workers: startup rendezvous, agreement on data and checkpoint, sums, barrier and exit barrier.

The rendezvous comes before TensorFlow's own, which waits without a time limit and without a message. Each worker
listens on its own port until it has reached every other worker. A port that accepts connections belongs to a worker
that still waits here, or to the TensorFlow of one that has continued. If a script opens that port later or never, each
worker listens until every other one has reached it; workers send their index to identify themselves. A peer that is
lost later ends a step with an error of TensorFlow, which `report.errors` recognizes.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.launch import INDEX, WorkerIdentity
from mptraining_api.problems import InvalidData, PeerLost, Preempted, ResumeRefused
from mptraining_trainer import keras_internals
from mptraining_trainer.devices.replica_variables import sum_over_replicas

# The default of runPolicy.pendingTimeoutSeconds: pods may wait that long for a machine, and DNS names need the pods.
DEADLINE_SECONDS = 1800.0
# Workers start some seconds apart; a longer wait is reported with the names of the missing workers.
_NOTICE_AFTER, _NOTICE_EVERY = 10.0, 30.0
_PROBE_INTERVAL, _PROBE_TIMEOUT = 0.5, 5.0
_PROBE_THREADS = 16
_MOST_NAMED = 5
# Sent by a worker directly after it connects, followed by its index.
_GREETING = "mptraining worker "
_GREETING_SECONDS = 1.0
_NOT_CONNECTED = "it listens, but has not reached this worker yet"

Probe = Callable[[str], str | None]


def wait_for_peers(
    identity: WorkerIdentity,
    *,
    now: Callable[[], float],
    wait: Callable[[float], bool],
    notice: Callable[[str, str], None],
    deadline: float = DEADLINE_SECONDS,
    probe: Probe | None = None,
    until_reached: bool = False,
) -> None:
    """Wait until every other worker of `identity.hosts` accepts connections.

    With `until_reached`, also wait until every other worker has connected to this one.

    `wait(seconds)` returns early, with True, when this worker has to stop: then Preempted is raised. PeerLost is raised
    after `deadline` seconds, with the index, host name and error of each missing worker, and immediately if this
    worker's own port is taken. `notice` receives the missing workers during the wait.
    """
    began = now()
    notice_at = began + _NOTICE_AFTER
    missing = {index: "not looked for yet" for index in range(len(identity.hosts)) if index != identity.index}
    # Without `until_reached`, TensorFlow's server may own the peer's port and must not receive a greeting.
    greeting = f"{_GREETING}{identity.index}\n".encode() if until_reached else b""
    probe = probe or (lambda address: connection_error(address, greeting))
    unconnected = set(missing) if until_reached else set()
    with _listening(identity) as listener, ThreadPoolExecutor(_PROBE_THREADS, thread_name_prefix="rendezvous") as pool:
        while True:
            unreached = [index for index in missing if missing[index] != _NOT_CONNECTED]
            errors = dict(zip(unreached, pool.map(probe, [identity.hosts[index] for index in unreached]), strict=True))
            unconnected -= _connected_workers(listener) if unconnected else set()
            missing = {
                index: error
                for index in missing
                if (error := errors.get(index) or (_NOT_CONNECTED if index in unconnected else None)) is not None
            }
            if not missing:
                return
            if now() - began >= deadline:
                raise PeerLost(
                    INDEX,
                    f"after {deadline:.0f} s {describe_missing(missing, identity.hosts)}",
                    expected=f"all {len(identity.hosts)} workers",
                    next_step="Probe at that pod's events and log; names need the job's headless Service, and its "
                    "NetworkPolicy must let the workers reach each other.",
                )
            if now() >= notice_at:
                notice_at = now() + _NOTICE_EVERY
                notice("WaitingForWorkers", f"waiting for {describe_missing(missing, identity.hosts)}")
            if wait(_PROBE_INTERVAL):
                raise Preempted("", f"told to leave while waiting for {describe_missing(missing, identity.hosts)}")


def describe_missing(missing: Mapping[int, str], hosts: tuple[str, ...]) -> str:
    """Return a line that names the missing workers, at most the first five."""
    named = [f"worker {index} ({hosts[index]}): {missing[index]}" for index in sorted(missing)[:_MOST_NAMED]]
    more = len(missing) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def connection_error(address: str, greeting: bytes = b"") -> str | None:
    """Return the reason why host:port cannot be reached, or None; send `greeting` to a peer that accepts."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT) as connection:
            connection.sendall(greeting)
    except socket.gaierror:
        return "its name is not known to DNS"
    except ConnectionRefusedError:
        return "its machine answers, the worker does not listen yet"
    except TimeoutError:
        return f"no answer within {_PROBE_TIMEOUT:.0f} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _connected_workers(listener: socket.socket) -> set[int]:
    """Return the indices of the workers that have connected since the last call."""
    connected: set[int] = set()
    listener.settimeout(0)
    while True:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return connected
        with connection:
            connection.settimeout(_GREETING_SECONDS)
            try:
                greeting = connection.recv(64).decode("ascii", "replace").strip()
            except OSError:
                continue
        if greeting.startswith(_GREETING) and greeting.removeprefix(_GREETING).isdecimal():
            connected.add(int(greeting.removeprefix(_GREETING)))


@contextmanager
def _listening(identity: WorkerIdentity) -> Iterator[socket.socket]:
    address = identity.hosts[identity.index]
    several = socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            ("", int(address.rpartition(":")[2])),
            family=socket.AF_INET6 if several else socket.AF_INET,
            # One connection from each other worker, none of which has to be accepted.
            backlog=max(128, len(identity.hosts)),
            dualstack_ipv6=several,
        )
    except OSError as error:
        raise PeerLost(
            f"worker {identity.index} ({address})",
            f"its port cannot be listened on: {error.strerror or error}",
            next_step="Another process of this machine has it; hostNetwork needs a port for each job.",
        ) from error
    with listener:
        yield listener


_DIGEST_BYTES = 8


def require_agreement(strategy: Any, identity: WorkerIdentity, *, data: str, checkpoint: str, folder: str) -> None:
    """Raise InvalidData or ResumeRefused on all workers if `data` or `checkpoint` differ. Every worker must call it."""
    same_data, same_checkpoint = agree(partial(_sum_over_replicas, strategy), identity, (data, checkpoint))
    if not same_data:
        raise InvalidData(
            "spec.data",
            "the workers do not find the same records",
            next_step="Put the files where all workers see them, and write nothing to them while a job starts.",
        )
    if not same_checkpoint:
        raise ResumeRefused(
            folder,
            "the workers do not find the same checkpoint",
            expected="one folder that all of them share",
            next_step="Name a bucket or a volume that every node mounts, or set training.resume: Never.",
        )


def sum_over_workers(strategy: Any, workers: int) -> Callable[[float], float]:
    """Return a function that sums the workers' numbers; if there are several workers, each must call it."""
    if workers == 1:
        return lambda value: value
    count = strategy.num_replicas_in_sync // workers
    total = tf.function(partial(sum_over_replicas, strategy), autograph=False)
    return lambda value: float(total(tf.constant(value, tf.float32)).numpy()) / count


def agree(sum_over_all: Callable[[Any], Any], identity: WorkerIdentity, texts: Sequence[str]) -> list[bool]:
    """Return for each text whether every worker has the chief's. Every worker must call it.

    `sum_over_all` returns the sum of a tensor over all replicas, each with its worker's values.
    """
    mine = np.array([list(hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]) for text in texts], np.float32)
    # float32, which every collective supports, is exact here: the chief's replicas alone add bytes, the others zeros.
    chiefs, replicas = (
        sum_over_all(tf.constant(values * identity.is_chief)) for values in (mine, np.ones(1, np.float32))
    )
    differing = sum_over_all(tf.constant((mine * replicas != chiefs).any(axis=1), tf.float32))
    return [bool(count == 0) for count in differing]


def mean_over_workers(strategy: Any, values: Sequence[float]) -> list[float]:
    """Return the mean of each value over the workers. Every worker must call it with the same number of values."""
    if not values:
        return []
    sums = _sum_over_replicas(strategy, tf.constant(list(values), tf.float32))
    return [float(value) / strategy.num_replicas_in_sync for value in sums]


def barrier(strategy: Any) -> None:
    """Wait until every worker has called it."""
    _sum_over_replicas(strategy, tf.constant(0.0))


def _sum_over_replicas(strategy: Any, values: Any) -> Any:
    return tf.function(partial(sum_over_replicas, strategy), autograph=False)(values).numpy()


_EXIT_KEY = "mptraining/parted"
# Longer than a copy of a large state takes, and shorter than the grace period of a spot machine.
_EXIT_TIMEOUT = 5.0


def exit_barrier(identity: WorkerIdentity) -> None:
    """Wait until the chief has finished. Call it once in every worker, after its last collective operation.

    The other workers wait for the chief, for 5 s at most, and not for a chief that has already ended: the chief's own
    exit reports its failure.
    """
    if len(identity.hosts) == 1:
        return
    with contextlib.suppress(tf.errors.OpError):
        if identity.is_chief:
            keras_internals.set_worker_key(_EXIT_KEY, "")
        else:
            keras_internals.wait_for_worker_key(_EXIT_KEY, _EXIT_TIMEOUT)
