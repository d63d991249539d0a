"""Memory and disk that this process may still use, by the pod's limits, and the CPU's bfloat16 support."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from mptraining_api.launch import EPHEMERAL_STORAGE

CGROUP = Path("/sys/fs/cgroup")


def available_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that can be allocated without an OOM kill or swapping, by the machine and by the pod's limit.

    The page cache counts against a pod's limit but is reclaimed on demand, so it counts as available.
    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max, memory.current, memory.stat).
    """
    machine = int(psutil.virtual_memory().available)
    limit = read_number(cgroup / "memory.max")
    used = read_number(cgroup / "memory.current")
    if limit is None or used is None:
        return machine
    return max(0, min(machine, limit - used + page_cache_bytes(cgroup / "memory.stat")))


def available_disk(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that may be written to `folder`, by the disk and by the pod's ephemeral-storage limit."""
    free = shutil.disk_usage(folder).free
    limit = environment.get(EPHEMERAL_STORAGE, "")
    return min(free, int(limit)) if limit.isdecimal() else free


def read_number(path: Path) -> int | None:
    """Return the number in a file of the cgroup; None for `max` and for a missing file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def page_cache_bytes(path: Path) -> int:
    """Return the bytes of the page cache by the file memory.stat; 0 if it is missing."""
    try:
        lines = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(lines.get("inactive_file", 0)) + int(lines.get("active_file", 0))


def native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX); False without /proc/cpuinfo."""
    try:
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
