"""TensorBoard profiles of a range of steps on every worker, published in the run folder, and device metrics.

    tensorboard/plugins/profile/<attempt>-steps-<first>-<last>/worker-<index>.xplane.pb

TensorBoard's profiler shows several workers side by side if a recording is one folder with one file per host. A failed
profile is reported and does not stop training.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import tensorflow as tf

from mptraining_api import run_folder
from mptraining_api.outputs.fields import Profile
from mptraining_api.problems import Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage, transfers
from mptraining_trainer.worker import Worker

# TensorFlow writes <folder>/plugins/profile/<time>/<host>.xplane.pb, beside files that only name the folder.
_RECORDED = "plugins/profile/*/*.xplane.pb"
_NAME = "profile"


class Profiling:
    """Records the steps of `job.profile`, if it is set. Steps count from 1, and both ends are included.

    Call `before_execution` and `after_execution` around every execution, and `finish` when training is over. `profiler`
    is `tf.profiler.experimental`.
    """

    def __init__(self, worker: Worker, profiler: Any = tf.profiler.experimental) -> None:
        self._worker = worker
        self._profiler = profiler
        self._first, self._last = _range(worker.job.profile)
        # While recording: the step before the first recorded one.
        self._since: int | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._is_recorded = False
        worker.exit_stack.callback(self.abandon)

    def before_execution(self, step: int) -> None:
        """Start recording if the step after `step` steps is in the range."""
        if step >= self._last and self._since is None:
            # An earlier attempt passed the range before this resume, so its profile is not missing.
            self._last = 0
        if self._since is not None or self._is_recorded or not self._first - 1 <= step < self._last:
            return
        self._scratch = tempfile.TemporaryDirectory(prefix="mptraining-")
        try:
            self._profiler.start(self._scratch.name)
        except tf.errors.OpError as error:
            # A process has one profiler, and the program's own TensorBoard callback may be using it.
            self._give_up(error.message)
            return
        self._since = step

    def trace_execution(self, step: int) -> AbstractContextManager[Any]:
        """Return a context that marks an execution after `step` steps as a training step in the profile."""
        if self._since is None:
            return contextlib.nullcontext()
        mark: AbstractContextManager[Any] = self._profiler.Trace("train", step_num=step + 1, _r=1)
        return mark

    def after_execution(self, step: int) -> None:
        """Stop and publish the recording if `step` completes the range."""
        if self._since is None or step < self._last:
            return
        first, self._since = self._since + 1, None
        try:
            self._profiler.stop()
        except tf.errors.OpError as error:
            self._give_up(error.message)
            return
        self._is_recorded = True
        self._worker.outbox.put(_NAME, lambda: self._publish(first, step))

    def finish(self, step: int) -> None:
        """Wait for the publication after the last step, `step`; report if there is no recording."""
        if self._since is not None:
            # Training ended within the range.
            self._last = step
            self.after_execution(step)
        if self._is_recorded:
            self._worker.outbox.wait(_NAME)
        elif self._last > 0:
            self._not_profiled(f"training was over before step {self._first}")

    def _publish(self, first: int, last: int) -> None:
        worker, scratch = self._worker, self._scratch
        assert scratch is not None
        name = f"{worker.identity.attempt}-steps-{first}-{last}"
        folder = storage.join(worker.folder, run_folder.TENSORBOARD)
        to = storage.join(folder, "plugins", "profile", name, f"worker-{worker.identity.index}.xplane.pb")
        try:
            with scratch:
                (recorded,) = Path(scratch.name).glob(_RECORDED)
                transfers.upload({recorded: to})
        except (Problem, OSError, ValueError) as error:
            self._not_profiled(str(error))
            return
        message = f"steps {first} to {last} are in {to}; view with: tensorboard --logdir {folder}"
        worker.telemetry.notice("Profiled", message)

    def _give_up(self, why: str) -> None:
        self._last = 0
        if self._scratch is not None:
            self._scratch.cleanup()
        self._not_profiled(why)

    def _not_profiled(self, why: str) -> None:
        self._worker.telemetry.notice("NotProfiled", f"no step is recorded: {why}", level="Warning")

    def abandon(self) -> None:
        """Discard an unfinished recording when training ends or rolls back within the range."""
        if self._since is not None:
            self._since = None
            with contextlib.suppress(tf.errors.OpError):
                self._profiler.stop(save=False)
            if self._scratch is not None:
                self._scratch.cleanup()


def profile_pauses(steps: Profile | None) -> tuple[int, ...]:
    """Return the steps after which executions must end, so that a recording has exactly its range."""
    first, last = _range(steps)
    return () if steps is None else (first - 1, last)


def _range(steps: Profile | None) -> tuple[int, int]:
    """Return the first and last step; (1, 0) for none. Steps count from 1, and 0 is taken as 1."""
    return (1, 0) if steps is None else (max(1, steps.first_step), max(1, steps.last_step))


# Memory that an allocator cannot use: fragments, and the memory of CUDA itself.
_USABLE = 0.9
_GIB = 1 << 30


def largest_batch(batch: int, *, peak: int, kept: int, limit: int) -> int:
    """Return the examples for which the memory suffices, at least `batch`, a multiple of 8 above it.

    `peak` bytes were used with `batch` examples, `kept` of them for any number: weights, optimizer, gradients. The rest
    grows with the examples.
    """
    an_example = max(1, peak - kept) / batch
    return max(batch, int((limit * _USABLE - kept) / an_example) // 8 * 8)


class DeviceMeter:
    """Reads device metrics from TensorFlow's allocator and, for GPUs, from NVML; none on a CPU.

    `memory_info` is `tf.config.experimental.get_memory_info`; `nvml` imports NVIDIA's package and is called only if the
    job uses GPUs. Unavailable metrics are omitted and never end a run.
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
        count = 0 if kind == "CPU" else job.replicas_per_worker
        self._names = [f"{kind}:{index}" for index in range(count)]
        self._memory_info = memory_info
        self._nvml: Any = None
        self._handles: list[Any] = []
        if kind == "GPU":
            self._open(nvml, environment.get("CUDA_VISIBLE_DEVICES"))

    def read(self) -> dict[str, int | float]:
        """Return fields of Progress: bytes of the fullest device, mean utilization in percent, sum of the power,
        temperature of the hottest.
        """
        figures: dict[str, int | float] = {}
        with contextlib.suppress(ValueError, RuntimeError, tf.errors.OpError):
            peaks = [self._memory_info(name)["peak"] for name in self._names]
            if peaks:
                figures["device_memory_peak_bytes"] = max(peaks)
        if self._handles:
            with contextlib.suppress(self._nvml.NVMLError):
                memories = map(self._nvml.nvmlDeviceGetMemoryInfo, self._handles)
                fullest = max(memories, key=attrgetter("used"))
                figures["device_memory_used_bytes"] = fullest.used
                figures["device_memory_total_bytes"] = fullest.total
            # Some virtual GPUs report memory only.
            with contextlib.suppress(self._nvml.NVMLError):
                busy = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
                figures["device_utilization_percent"] = round(sum(busy) / len(busy), 1)
            with contextlib.suppress(self._nvml.NVMLError):
                watts = sum(self._nvml.nvmlDeviceGetPowerUsage(handle) for handle in self._handles) / 1000
                figures["device_power_watts"] = round(watts, 1)
            with contextlib.suppress(self._nvml.NVMLError):
                sensor = self._nvml.NVML_TEMPERATURE_GPU
                figures["device_temperature_celsius"] = max(
                    self._nvml.nvmlDeviceGetTemperature(handle, sensor) for handle in self._handles
                )
        return figures

    def memory_advice(self, batch: int, gradient_bytes: int) -> str | None:
        """Return the memory that the first steps took, and the largest batch that fits; None without a device.

        `batch` is the examples of a replica in one pass, `gradient_bytes` the size of its gradients.
        """
        read = self.read()
        peak, there = read.get("device_memory_peak_bytes"), read.get("device_memory_total_bytes")
        if peak is None:
            return None
        took = f"the first steps took at most {peak / _GIB:.1f} GiB of a device's memory"
        if there is None:
            return took
        kept = max(self._memory_info(name)["current"] for name in self._names) + gradient_bytes
        most = largest_batch(batch, peak=int(peak), kept=kept, limit=int(there))
        fits = f": some {most} examples a replica fit" if most > batch else ", which is nearly all"
        return f"{took}, with {batch} examples a replica; it has {there / _GIB:.1f} GiB{fits}"

    def _open(self, nvml: Callable[[], Any], visible: str | None) -> None:
        try:
            self._nvml = nvml()
        except ImportError:
            return
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlInit()
            self._handles = [self._handle(name) for name in self._visible(visible)[: len(self._names)]]

    def _visible(self, visible: str | None) -> list[str]:
        """Return the GPUs that CUDA uses, by index or UUID; NVML itself counts all GPUs of the machine."""
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
