"""Are all workers there? Asked before TensorFlow waits for them, which does so without end and without a word.

Each worker listens on its own port until it has reached every other one. A port that takes connections is a worker that
waits here too, or one that went on and whose TensorFlow has the port by now. Where a script opens that port later, or
never, each worker listens until every other one has reached it: they send their index, and are known by it.
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

import tensorflow as tf

# The service in which the workers of MultiWorkerMirroredStrategy find each other keeps keys and values for them; it
# has no public name.
from tensorflow.python.eager import context

from mptraining_api.launch import INDEX, WorkerIdentity
from mptraining_api.problems import InvalidData, PeerLost, Preempted, ResumeRefused
from mptraining_trainer.distribution.replica_variables import sum_over_replicas

# As long as pods may wait for a machine (runPolicy.pendingTimeoutSeconds' default), on which their names depend.
DEADLINE_SECONDS = 1800.0
# Workers start some seconds apart; who waits for longer than that says for whom.
_SAY_AFTER, _SAY_EVERY = 10.0, 30.0
_BETWEEN_LOOKS, _LOOK_SECONDS = 0.5, 5.0
_AT_ONCE = 16
_NAMED = 5
# What a worker sends when it connects, with its index after it; it follows the connection at once.
_GREETING = "mptraining worker "
_GREETING_SECONDS = 1.0
_NOT_HEARD = "it listens, but has not reached this worker yet"

Look = Callable[[str], str | None]


def wait_for_peers(
    identity: WorkerIdentity,
    *,
    now: Callable[[], float],
    wait: Callable[[float], bool],
    notice: Callable[[str, str], None],
    deadline: float = DEADLINE_SECONDS,
    look: Look | None = None,
    until_reached: bool = False,
) -> None:
    """Returns when every other worker of `identity.hosts` takes connections.

    With `until_reached` only when every other worker has reached this one, too.

    `wait(seconds)` returns early, with True, when this worker is told to leave: then Preempted is raised. PeerLost is
    raised after `deadline` seconds, with the index, the host name and the trouble of each worker that is missing; and
    at once when this worker's own port is taken. `notice` hears of them while they are waited for.
    """
    began = now()
    say_at = began + _SAY_AFTER
    missing = {index: "not looked for yet" for index in range(len(identity.hosts)) if index != identity.index}
    # Not to TensorFlow's own server.
    greeting = f"{_GREETING}{identity.index}\n".encode() if until_reached else b""
    look = look or (lambda address: trouble(address, greeting))
    silent = set(missing) if until_reached else set()
    with _listening(identity) as listener, ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rendezvous") as pool:
        while True:
            unseen = [index for index in missing if missing[index] != _NOT_HEARD]
            found = dict(zip(unseen, pool.map(look, [identity.hosts[index] for index in unseen]), strict=True))
            silent -= _heard(listener) if silent else set()
            missing = {
                index: said
                for index in missing
                if (said := found.get(index) or (_NOT_HEARD if index in silent else None)) is not None
            }
            if not missing:
                return
            if now() - began >= deadline:
                raise PeerLost(
                    INDEX,
                    f"after {deadline:.0f} s {absent(missing, identity.hosts)}",
                    expected=f"all {len(identity.hosts)} workers",
                    next_step="Look at that pod's events and log; names need the job's headless Service, and its "
                    "NetworkPolicy must let the workers reach each other.",
                )
            if now() >= say_at:
                say_at = now() + _SAY_EVERY
                notice("WaitingForWorkers", f"waiting for {absent(missing, identity.hosts)}")
            if wait(_BETWEEN_LOOKS):
                raise Preempted("", f"told to leave while waiting for {absent(missing, identity.hosts)}")


def absent(missing: Mapping[int, str], hosts: tuple[str, ...]) -> str:
    """A line that names the missing workers, the first few of many."""
    named = [f"worker {index} ({hosts[index]}): {missing[index]}" for index in sorted(missing)[:_NAMED]]
    more = len(missing) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def trouble(address: str, greeting: bytes = b"") -> str | None:
    """The reason that host:port cannot be reached, or None; a peer there is sent `greeting`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_SECONDS) as connection:
            connection.sendall(greeting)
    except socket.gaierror:
        return "its name is not known to DNS"
    except ConnectionRefusedError:
        return "its machine answers, the worker does not listen yet"
    except TimeoutError:
        return f"no answer within {_LOOK_SECONDS:.0f} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _heard(listener: socket.socket) -> set[int]:
    """The indices of the workers that have connected since the last call."""
    found: set[int] = set()
    listener.settimeout(0)
    while True:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return found
        with connection:
            connection.settimeout(_GREETING_SECONDS)
            try:
                said = connection.recv(64).decode("ascii", "replace").strip()
            except OSError:
                continue
        if said.startswith(_GREETING) and said.removeprefix(_GREETING).isdecimal():
            found.add(int(said.removeprefix(_GREETING)))


@contextmanager
def _listening(identity: WorkerIdentity) -> Iterator[socket.socket]:
    address = identity.hosts[identity.index]
    several = socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            ("", int(address.rpartition(":")[2])),
            family=socket.AF_INET6 if several else socket.AF_INET,
            # One connection of each other worker; nobody needs to take them.
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


_PIECES = 8


def require_agreement(strategy: Any, *, data: str, checkpoint: str, folder: str) -> None:
    """Every worker must call it. Raises InvalidData or ResumeRefused, on all of them, when one says something else."""
    same_data, same_checkpoint = _agree(strategy, (data, checkpoint))
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
    """A function that adds up the numbers that the workers call it with; with several, each must call it."""
    if workers == 1:
        return lambda value: value
    count = strategy.num_replicas_in_sync // workers
    total = _summing(strategy)
    return lambda value: float(total(tf.constant(value, tf.float32)).numpy()) / count


def _agree(strategy: Any, texts: tuple[str, ...]) -> list[bool]:
    """For each text whether it is the same everywhere."""
    digests = [list(hashlib.sha256(text.encode()).digest()[:_PIECES]) for text in texts]
    said = tf.constant(digests, tf.float32)
    # n numbers are equal if and only if n times the sum of their squares is the square of their sum. They are bytes,
    # so that float32, which every collective knows, is exact for 256 replicas.
    count = strategy.num_replicas_in_sync
    sums, squares = _sum_over_replicas(strategy, said), _sum_over_replicas(strategy, said * said)
    return [
        all(count * int(square) == int(sum) ** 2 for sum, square in zip(*each, strict=True))
        for each in zip(sums, squares, strict=True)
    ]


def mean_over_workers(strategy: Any, values: Sequence[float]) -> list[float]:
    """What all workers come to together, the same on each; every worker must call it with as many values."""
    if not values:
        return []
    sums = _sum_over_replicas(strategy, tf.constant(list(values), tf.float32))
    return [float(value) / strategy.num_replicas_in_sync for value in sums]


def gathered(strategy: Any, identity: int, workers: int, values: Sequence[int]) -> list[list[int]]:
    """What each worker says, by its index; every worker must call it with as many small whole numbers."""
    own = [[float(value) if worker == identity else 0.0 for value in values] for worker in range(workers)]
    sums = _sum_over_replicas(strategy, tf.constant(own, tf.float32))
    replicas_each = strategy.num_replicas_in_sync / workers
    return [[round(float(value) / replicas_each) for value in row] for row in sums]


def barrier(strategy: Any) -> None:
    """Returns when every worker has called it."""
    _sum_over_replicas(strategy, tf.constant(0.0))


def _sum_over_replicas(strategy: Any, values: Any) -> Any:
    return _summing(strategy)(values).numpy()


def _summing(strategy: Any) -> Any:
    return tf.function(partial(sum_over_replicas, strategy))


_KEY = "mptraining/parted"
# Longer than a copy of a large state takes, and within the grace of a spot machine.
_SECONDS = 5.0


def exit_barrier(identity: WorkerIdentity) -> None:
    """To be called once by every worker, after its last collective operation and before it exits.

    The others wait for the chief, for 5 s at most, and not for one that is gone: whatever there is to say of that, the
    chief's own end says.
    """
    if len(identity.hosts) == 1:
        return
    with contextlib.suppress(tf.errors.OpError):
        if identity.is_chief:
            context.context().set_config_key_value(_KEY, "")
        else:
            context.context().get_config_key_value(_KEY, int(_SECONDS * 1000))
