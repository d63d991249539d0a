"""Memory and utilisation of the GPUs or TPU cores that this process computes on, for its Progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import tensorflow as tf

from mptraining_api.resolved_job import ResolvedJob


class DeviceMeter:
    """Reads what TensorFlow's allocator and, for GPUs, NVIDIA's library say; nothing on a CPU.

    `memory_info` is `tf.config.experimental.get_memory_info`; `nvml` loads NVIDIA's package, which is asked for only
    when the job computes on GPUs. Figures that cannot be had are left out: they are no reason to end a run.
    """

    def __init__(
        self,
        job: ResolvedJob,
        *,
        memory_info: Callable[[str], Mapping[str, int]] = tf.config.experimental.get_memory_info,
        nvml: Callable[[], Any] = lambda: import_module("pynvml"),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        kind = job.accelerator.kind.upper()
        count = 0 if kind == "CPU" else job.replicas_per_process
        self._names = [f"{kind}:{index}" for index in range(count)]
        self._memory_info = memory_info
        self._nvml: Any = None
        self._handles: list[Any] = []
        if kind == "GPU":
            self._open(nvml, environment.get("CUDA_VISIBLE_DEVICES"))

    def read(self) -> dict[str, int | float]:
        """Fields of Progress: bytes of the fullest device, percent on average over the devices."""
        found: dict[str, int | float] = {}
        with contextlib.suppress(ValueError, RuntimeError, tf.errors.OpError):
            peaks = [self._memory_info(name)["peak"] for name in self._names]
            if peaks:
                found["device_memory_peak_bytes"] = max(peaks)
        if self._handles:
            with contextlib.suppress(self._nvml.NVMLError):
                fullest = max((self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles), key=_used)
                found["device_memory_used_bytes"] = fullest.used
                found["device_memory_total_bytes"] = fullest.total
            # Some virtual GPUs tell of memory alone.
            with contextlib.suppress(self._nvml.NVMLError):
                busy = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
                found["device_utilization_percent"] = round(sum(busy) / len(busy), 1)
        return found

    def _open(self, nvml: Callable[[], Any], visible: str | None) -> None:
        try:
            self._nvml = nvml()
        except ImportError:
            return
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlInit()
            self._handles = [self._handle(name) for name in self._visible(visible)[: len(self._names)]]

    def _visible(self, visible: str | None) -> list[str]:
        """NVML counts all GPUs of the machine; CUDA those of this variable, by number or uuid, in its order."""
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)


def _used(memory: Any) -> int:
    used: int = memory.used
    return used
