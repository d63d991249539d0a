"""Device metrics from TensorFlow's allocator and from a fake NVML."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from mptraining_api.events import Progress
from mptraining_trainer.training.profiling import DeviceMeter
from tests.jobs import resolved_job


class Nvml:
    """Three GPUs of 16 GB; the n-th is n x 10 % busy, holds n GB, takes 100 + n W and has 50 + n degrees. Names and
    errors are the real package's.
    """

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, *, absent: bool = False, utilization: bool = True) -> None:
        self._absent, self._utilization = absent, utilization

    def nvmlInit(self) -> None:
        if self._absent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return {"GPU-c": 2}[name]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=handle * 10**9, total=16 * 10**9)

    def _if_supported(self, value: Any) -> Any:
        if not self._utilization:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._if_supported(SimpleNamespace(gpu=handle * 10, memory=1))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._if_supported(100_000 + handle * 1000)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._if_supported(50 + handle)


JOB = resolved_job(accelerator={"type": "nvidia-tesla-t4", "countPerNode": 2})


def memory_info(name: str) -> dict[str, int]:
    return {"current": 1, "peak": {"GPU:0": 5, "GPU:1": 7}[name]}


def read(nvml: Any, visible: str | None = None, **named: Any) -> dict[str, Any]:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    given = {"memory_info": memory_info} | named
    return DeviceMeter(JOB, nvml=lambda: nvml, environment=environment, **given).read()


@pytest.mark.parametrize(
    ("visible", "used", "percent", "watts", "degrees"),
    [
        # Two of the machine's three are ours: the first two, or those that CUDA_VISIBLE_DEVICES lists, in its order.
        (None, 1, 5.0, 201.0, 51),
        ("2,0,1", 2, 10.0, 202.0, 52),
        ("GPU-c, 1", 2, 15.0, 203.0, 52),
    ],
)
def test_the_fullest_and_hottest_gpu_the_mean_of_how_busy_they_are_and_the_sum_of_their_power(
    visible: str | None, used: int, percent: float, watts: float, degrees: int
) -> None:
    found = read(Nvml(), visible)
    assert found == {
        "device_memory_peak_bytes": 7,
        "device_memory_used_bytes": used * 10**9,
        "device_memory_total_bytes": 16 * 10**9,
        "device_utilization_percent": percent,
        "device_power_watts": watts,
        "device_temperature_celsius": degrees,
    }
    told = Progress(time=1, attempt=1, incarnation="a", worker=0, step=1, epoch=1, metrics={}, **found)
    assert told.device_utilization_percent == percent


def raising(error: type[Exception]) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_what_a_device_does_not_report_is_left_out() -> None:
    peak = {"device_memory_peak_bytes": 7}
    total = {"device_memory_used_bytes": 10**9, "device_memory_total_bytes": 16 * 10**9}
    assert read(Nvml(utilization=False)) == peak | total
    assert read(Nvml(absent=True)) == read(Nvml(), "7") == peak, "no driver; a number that no GPU has"
    assert DeviceMeter(JOB, nvml=raising(ImportError), memory_info=memory_info, environment={}).read() == peak
    assert "device_memory_peak_bytes" not in read(Nvml(), memory_info=raising(ValueError))
    assert "device_memory_used_bytes" not in DeviceMeter(JOB, environment={}).read(), "the real package without a GPU"


def test_a_cpu_job_reads_no_metrics() -> None:
    assert DeviceMeter(resolved_job(), nvml=raising(AssertionError), memory_info=raising(AssertionError)).read() == {}
