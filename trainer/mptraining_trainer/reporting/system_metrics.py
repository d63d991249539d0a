"""CPU, memory, disk and network of the worker's container, or of its process where no cgroup limits it.

The network is that of the pod's network namespace, or of the machine's network cards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from mptraining_trainer.host import Cgroup

_NETWORKS = Path("/sys/class/net")
# Between two samples, in seconds; the counters of a shorter time say little.
_SHORTEST = 0.2


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters at a time in seconds: CPU seconds, and bytes; None if unknown."""

    time: float
    cpu_seconds: float | None
    disk_read: int | None
    disk_write: int | None
    received: int | None
    sent: int | None


def rates(before: Counters, now: Counters, cpus: float) -> dict[str, float]:
    """Return the fields of Progress for the time between two samples; `cpus` may be used. Unknown ones are omitted."""
    seconds = now.time - before.time
    pairs = {
        "disk_read_bytes_per_second": (before.disk_read, now.disk_read),
        "disk_write_bytes_per_second": (before.disk_write, now.disk_write),
        "network_receive_bytes_per_second": (before.received, now.received),
        "network_send_bytes_per_second": (before.sent, now.sent),
    }
    # A counter of ended child processes, or of a removed interface, may go back.
    found = {
        name: round(max(0.0, (after - begin) / seconds), 1)
        for name, (begin, after) in pairs.items()
        if begin is not None and after is not None
    }
    if before.cpu_seconds is not None and now.cpu_seconds is not None:
        found["cpu_percent"] = round(max(0.0, (now.cpu_seconds - before.cpu_seconds) / seconds / cpus * 100), 1)
    return found


class SystemMeter:
    """Reads the metrics since the previous call of `read`. Unavailable ones are omitted and never end a run."""

    def __init__(self, now: Callable[[], float], cgroup: Cgroup | None = None, networks: Path = _NETWORKS) -> None:
        self._now = now
        self._networks = networks
        self._cgroup = cgroup or Cgroup()
        self._process = psutil.Process()
        self._cpus = self._usable_cpus()
        self._before = self._counters()
        self._rates: dict[str, float] = {}

    def read(self) -> dict[str, int | float]:
        """Return fields of Progress; see `events.Progress`."""
        if self._now() - self._before.time >= _SHORTEST:
            counters = self._counters()
            self._rates = rates(self._before, counters, self._cpus)
            self._before = counters
        return {**self._rates, **self._memory()}

    def _memory(self) -> dict[str, int]:
        machine = int(psutil.virtual_memory().total)
        used = self._cgroup.memory_used()
        limit = self._cgroup.memory_limit() if used is not None else None
        if used is None:
            used = int(self._process.memory_info().rss)
        return {"memory_used_bytes": used, "memory_limit_bytes": min(machine, limit or machine)}

    def _usable_cpus(self) -> float:
        count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        return min(count, self._cgroup.cpus() or count)

    def _counters(self) -> Counters:
        cpu, disk = self._cgroup.cpu_seconds(), self._cgroup.disk_bytes()
        received, sent = self._network()
        disk_read, disk_write = self._process_disk() if disk is None else disk
        return Counters(self._now(), self._process_cpu() if cpu is None else cpu, disk_read, disk_write, received, sent)

    def _process_cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)

    def _process_disk(self) -> tuple[int | None, int | None]:
        with contextlib.suppress(psutil.Error, OSError, AttributeError, RuntimeError):
            counters = self._process.io_counters()
            return int(counters.read_bytes), int(counters.write_bytes)
        return None, None

    def _network(self) -> tuple[int | None, int | None]:
        with contextlib.suppress(psutil.Error, OSError, RuntimeError):
            found = {name: each for name, each in psutil.net_io_counters(pernic=True).items() if name != "lo"}
            # A bridge and its virtual interfaces count what a card has counted; a pod has virtual interfaces only.
            cards = [each for name, each in found.items() if (self._networks / name / "device").exists()]
            counted = cards or list(found.values())
            return sum(each.bytes_recv for each in counted), sum(each.bytes_sent for each in counted)
        return None, None
