"""How much memory and disk this process may still use: the pod's limits, not the machine's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from mptraining_api.launch import EPHEMERAL_STORAGE

_CGROUP = Path("/sys/fs/cgroup")


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that can be used without anything being killed or swapped: of the machine, and of the pod's limit.

    What the kernel keeps of files counts against a pod's limit but is given up on demand, so it is available.
    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max, memory.current, memory.stat).
    """
    machine = int(psutil.virtual_memory().available)
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is None or used is None:
        return machine
    return max(0, min(machine, limit - used + _of_files(cgroup / "memory.stat")))


def available_disk(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Bytes that may be written to `folder`: of the disk, and of the pod's limit for scratch files."""
    free = shutil.disk_usage(folder).free
    limit = environment.get(EPHEMERAL_STORAGE, "")
    return min(free, int(limit)) if limit.isdecimal() else free


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _of_files(path: Path) -> int:
    try:
        lines = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(lines.get("inactive_file", 0)) + int(lines.get("active_file", 0))


def native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX); False where Linux does not say."""
    try:
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
