"""What this machine's processor can do in hardware."""

from __future__ import annotations

from pathlib import Path


def native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX); False where Linux does not say."""
    try:
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
