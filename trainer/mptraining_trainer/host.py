"""Memory and disk that this process may still use, by the pod's limits, and the CPU's bfloat16 support."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from mptraining_api.launch import EPHEMERAL_STORAGE

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


class Cgroup:
    """Limits and counters of the container that this process runs in, by cgroup v2, v1, or v1 with v2 for systemd.

    Methods return None for what the kernel does not limit or count. `mount` and `own` are /sys/fs/cgroup and
    /proc/self/cgroup. Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html.
    """

    def __init__(self, mount: Path = _MOUNT, cgroup_file: Path = _OWN) -> None:
        self._v2 = (mount / "cgroup.controllers").exists()
        self._mount = mount
        root = self._base("memory")
        # A container sees its own cgroup in place of the root, which alone has, or lacks, these files.
        self.in_container = (
            (root / "memory.current").exists()
            if self._v2
            else (root / "memory.usage_in_bytes").exists() and not (root / "release_agent").exists()
        )
        # The cgroup of this process and those above it, each of which may have a limit.
        self._levels = _levels(root, _path(cgroup_file, "" if self._v2 else "memory"))

    def _base(self, controller: str) -> Path:
        return self._mount if self._v2 else self._mount / controller

    def memory_limit(self) -> int | None:
        """Return the smallest limit in bytes; v1 writes a number that no machine has for no limit."""
        limits = [limit for level in self._levels if (limit := self._limit(level)) is not None]
        return min(limits, default=None)

    def memory_used(self) -> int | None:
        """Return the bytes that the container uses without the page cache, which is reclaimed on demand."""
        return self._used(self._levels[-1]) if self.in_container else None

    def memory_left(self) -> int | None:
        """Return the bytes that can be allocated before a limit is reached."""
        left = []
        for level in self._levels:
            limit, used = self._limit(level), self._used(level)
            if limit is not None and used is not None:
                left.append(max(0, limit - used))
        return min(left, default=None)

    def oom_kills(self) -> int:
        """Return how many processes of the container the kernel has killed for memory."""
        level = self._levels[-1] if self.in_container else self._levels[0]
        return _fields(level / ("memory.events" if self._v2 else "memory.oom_control")).get("oom_kill", 0)

    def cpus(self) -> float | None:
        """Return the CPUs that the container may use."""
        cpu = self._base("cpu")
        if self._v2:
            quota, _, period = _text(cpu / "cpu.max").partition(" ")
        else:
            quota, period = _text(cpu / "cpu.cfs_quota_us"), _text(cpu / "cpu.cfs_period_us")
        return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None

    def cpu_seconds(self) -> float | None:
        """Return the CPU time that the container has used."""
        if not self.in_container:
            return None
        if self._v2:
            used = _fields(self._mount / "cpu.stat").get("usage_usec")
            return None if used is None else used / 1e6
        text = _text(self._base("cpuacct") / "cpuacct.usage")
        return int(text) / 1e9 if text.isdecimal() else None

    def disk_bytes(self) -> tuple[int, int] | None:
        """Return the bytes read and written on all devices; None on v1, and where the io controller is off."""
        stat = self._mount / "io.stat"
        if not self.in_container or not stat.exists():
            return None
        fields = [field.partition("=") for field in _text(stat).split() if "=" in field]
        read, written = (
            sum(int(value) for name, _, value in fields if name == counter and value.isdecimal())
            for counter in ("rbytes", "wbytes")
        )
        return read, written

    def _limit(self, level: Path) -> int | None:
        text = _text(level / ("memory.max" if self._v2 else "memory.limit_in_bytes"))
        return int(text) if text.isdecimal() else None

    def _used(self, level: Path) -> int | None:
        text = _text(level / ("memory.current" if self._v2 else "memory.usage_in_bytes"))
        if not text.isdecimal():
            return None
        # v1 counts the cgroups below apart from the totals, which correspond to the usage.
        counters, total = _fields(level / "memory.stat"), "" if self._v2 else "total_"
        cache = sum(counters.get(f"{total}{name}", 0) for name in ("inactive_file", "active_file"))
        return max(0, int(text) - cache)


def _path(cgroup_file: Path, controller: str) -> str:
    """Return the path of this process's cgroup of that controller, "" for v2's; "/" if it is unknown."""
    for line in _text(cgroup_file).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _levels(root: Path, path: str) -> list[Path]:
    """Return the cgroup at `path` and those above it up to `root`, the only one if the path is of the host."""
    leaf = root / path.strip("/")
    if ".." in leaf.parts or not leaf.is_dir():
        return [root]
    return [leaf, *(level for level in leaf.parents if level == root or root in level.parents)]


def _text(path: Path) -> str:
    """Return the content of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a file."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def available_memory(cgroup: Cgroup | None = None) -> int:
    """Return the bytes that can be allocated without an OOM kill or swapping, by the machine and by the pod's limit."""
    machine = int(psutil.virtual_memory().available)
    left = (cgroup or Cgroup()).memory_left()
    return machine if left is None else min(machine, left)


def available_disk(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that may be written to `folder`, by the disk and by the pod's ephemeral-storage limit."""
    free = shutil.disk_usage(folder).free
    limit = environment.get(EPHEMERAL_STORAGE, "")
    return min(free, int(limit)) if limit.isdecimal() else free


def native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX); False without /proc/cpuinfo."""
    try:
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
