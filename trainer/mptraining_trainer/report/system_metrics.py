"""CPU, memory, disk and network of the worker's container, or of its process where no cgroup limits it.

The network is that of the pod's network namespace, or of the machine's network cards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from mptraining_trainer.host import Cgroup

_NETWORKS = Path("/sys/class/net")
# Between two samples, in seconds; the counters of a shorter time say little.
_SHORTEST = 0.2


class SystemMeter:
    """Reads the metrics since the previous call of `read`. Unavailable ones are omitted and never end a run."""

    def __init__(self, now: Callable[[], float], cgroup: Cgroup | None = None, networks: Path = _NETWORKS) -> None:
        self._now = now
        self._networks = networks
        self._cgroup = cgroup or Cgroup()
        self._process = psutil.Process()
        self._cpus = self._usable_cpus()
        self._before_at, self._before = now(), self._counters()
        self._rates: dict[str, float] = {}

    def read(self) -> dict[str, int | float]:
        """Return fields of Progress; see `events.Progress`."""
        seconds = self._now() - self._before_at
        if seconds >= _SHORTEST:
            counters = self._counters()
            # A counter of ended child processes, or of a removed interface, may go back.
            self._rates = {
                name: round(max(0.0, (counter - self._before[name]) / seconds), 1)
                for name, counter in counters.items()
                if name in self._before
            }
            self._before_at, self._before = self._before_at + seconds, counters
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

    def _counters(self) -> dict[str, float]:
        """Return the counters whose rates are the fields of Progress, by the names of these."""
        counters: dict[str, float] = {}
        cpu = self._cgroup.cpu_seconds()
        if cpu is None:
            times = self._process.cpu_times()
            cpu = times.user + times.system + times.children_user + times.children_system
        counters["cpu_percent"] = cpu * 100 / self._cpus
        with contextlib.suppress(psutil.Error, OSError, AttributeError, RuntimeError):
            disk = self._cgroup.disk_bytes()
            if disk is None:
                of_process = self._process.io_counters()
                disk = of_process.read_bytes, of_process.write_bytes
            counters["disk_read_bytes_per_second"], counters["disk_write_bytes_per_second"] = disk
        with contextlib.suppress(psutil.Error, OSError, RuntimeError):
            networks = {name: network for name, network in psutil.net_io_counters(pernic=True).items() if name != "lo"}
            # A bridge and its virtual interfaces count what a card has counted; a pod has virtual interfaces only.
            cards = [network for name, network in networks.items() if (self._networks / name / "device").exists()]
            counted = cards or list(networks.values())
            counters["network_receive_bytes_per_second"] = sum(network.bytes_recv for network in counted)
            counters["network_send_bytes_per_second"] = sum(network.bytes_sent for network in counted)
        return counters
