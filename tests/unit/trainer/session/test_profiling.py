"""Profiles of a range of steps, and device metrics from TensorFlow's allocator and a fake NVML."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import events
from mptraining_api.events import Progress
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outputs.fields import Profile
from mptraining_storage import storage
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.report.telemetry import Telemetry
from mptraining_trainer.session.profiling import DeviceMeter, Profiling, profile_pauses
from mptraining_trainer.step.steps_per_execution import Boundaries
from mptraining_trainer.worker import Worker
from tests.jobs import resolved_job


class Recorder:
    """Records the calls of `tf.profiler.experimental`, and writes the files that it writes."""

    def __init__(self, *, fails: str | None = None, writes: bool = True) -> None:
        self.said: list[Any] = []
        self._fails, self._writes, self._folder = fails, writes, Path()

    def start(self, folder: str) -> None:
        self._folder = Path(folder)
        if self._fails == "start":
            raise tf.errors.AlreadyExistsError(None, None, "Another profiler is running.")
        self.said.append("start")

    def stop(self, save: bool = True) -> None:
        self.said.append("stop" if save else "drop")
        if self._fails == "stop":
            raise tf.errors.UnavailableError(None, None, "Cannot export.")
        if save and self._writes:
            into = self._folder / "plugins" / "profile" / "2026_11_21_17_11_13"
            into.mkdir(parents=True)
            (into / "vm.xplane.pb").write_bytes(b"recorded")

    def Trace(self, name: str, *, step_num: int, _r: int) -> Any:
        self.said.append(step_num)
        return nullcontext()


class Place:
    """A run folder, one worker of it, and the worker's messages."""

    def __init__(self, folder: str, first: int, last: int, *, index: int = 0) -> None:
        job = resolved_job(profile={"firstStep": first, "lastStep": last})
        identity = WorkerIdentity(index=index, hosts=("localhost:0", "localhost:1"), attempt=2, incarnation="a")
        self.folder, self._stream, self.exit_stack = folder, io.StringIO(), ExitStack()
        telemetry = Telemetry(identity, None, stream=self._stream)
        self.worker = Worker(job, identity, telemetry, Preemption(lambda: None), folder, 10.0, self.exit_stack)

    def train(self, recorder: Recorder, executions: Sequence[int], begin: int = 0) -> None:
        """Train to the end, executing so many steps at a time."""
        profiling, step = Profiling(self.worker, recorder), begin
        for steps in executions:
            profiling.before_execution(step)
            with profiling.trace_execution(step):
                step += steps
            profiling.after_execution(step)
        profiling.finish(step)

    def notices(self) -> list[tuple[str, str]]:
        said = [events.parse(line) for line in self._stream.getvalue().splitlines()]
        return [(event.topic, event.message) for event in said if isinstance(event, events.Notice)]

    def recorded(self) -> list[str]:
        return [found.uri.removeprefix(self.folder) for found in storage.list_objects(self.folder)]


def test_the_range_is_recorded_and_published_with_its_place(tmp_path: Path) -> None:
    recorder, place = Recorder(), Place(str(tmp_path), 3, 6)
    place.train(recorder, [2, 2, 2, 1])
    assert recorder.said == ["start", 3, 5, "stop"], "an execution is marked with the first of its steps"
    assert place.recorded() == ["/tensorboard/plugins/profile/2-steps-3-6/worker-0.xplane.pb"]
    ((topic, message),) = place.notices()
    assert topic == "Profiled"
    assert message == (
        f"steps 3 to 6 are in {tmp_path}/tensorboard/plugins/profile/2-steps-3-6/worker-0.xplane.pb; "
        f"view with: tensorboard --logdir {tmp_path}/tensorboard"
    )


def test_workers_recordings_are_beside_each_other_in_a_bucket(bucket: str) -> None:
    for index in (0, 1):
        Place(f"{bucket}/run", 1, 1, index=index).train(Recorder(), [1, 1])
    assert Place(f"{bucket}/run", 1, 1).recorded() == [
        f"/tensorboard/plugins/profile/2-steps-1-1/worker-{index}.xplane.pb" for index in (0, 1)
    ]


@given(st.integers(0, 30), st.integers(0, 8), st.integers(1, 40), st.integers(1, 9), st.integers(0, 40))
def test_no_other_step_is_in_it(first: int, more: int, total: int, fused: int, begin: int) -> None:
    """For any begin and end of the training, and any number of fused steps."""
    last = first + more
    ends = Boundaries(total, 7, None, None, pauses=profile_pauses(Profile(first_step=first, last_step=last)))
    recorder, place = Recorder(writes=False), Place("unwritten", first, last)
    step, executions, marked = begin, [], {}
    while step < total:
        steps = min(fused, ends.steps_until_next(step))
        marked[step + 1] = range(step + 1, step + steps + 1)
        executions.append(steps)
        step += steps
    place.train(recorder, executions, begin)
    inside = [one for mark in recorder.said if isinstance(mark, int) for one in marked[mark]]
    assert inside == list(range(max(1, first, begin + 1), min(max(1, last), total) + 1))
    assert (recorder.said.count("start"), recorder.said.count("stop")) == ((1, 1) if inside else (0, 0))


@pytest.mark.parametrize(
    ("begin", "notices"),
    [(0, [("NotProfiled", "no step is recorded: training was over before step 10")]), (12, [])],
    ids=["before the range", "resumed behind it"],
)
def test_an_end_before_the_range_is_reported(tmp_path: Path, begin: int, notices: list[tuple[str, str]]) -> None:
    place = Place(str(tmp_path), 10, 12)
    place.train(Recorder(), [5], begin=begin)
    assert place.notices() == notices


@pytest.mark.parametrize(
    ("recorder", "folder", "why"),
    [
        (Recorder(fails="start"), "", "Another profiler is running."),
        (Recorder(fails="stop"), "", "Cannot export."),
        (Recorder(writes=False), "", "not enough values to unpack"),
        (Recorder(), "file", ""),
    ],
)
def test_an_error_is_reported_and_training_continues(recorder: Recorder, folder: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = Place(str(tmp_path / folder), 2, 4)
    place.train(recorder, [1] * 8)
    ((topic, message),) = place.notices()
    assert topic == "NotProfiled"
    assert message.startswith(f"no step is recorded: {why}")


def test_a_run_that_ends_in_mid_range_drops_the_recording(tmp_path: Path) -> None:
    recorder, place = Recorder(), Place(str(tmp_path), 1, 9)
    Profiling(place.worker, recorder).before_execution(0)
    place.exit_stack.close()
    assert recorder.said == ["start", "drop"]


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


JOB = resolved_job(accelerator={"type": "t4", "countPerWorker": 2})


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
    meter = DeviceMeter(resolved_job(), nvml=raising(AssertionError), memory_info=raising(AssertionError))
    assert meter.read() == {}
    assert meter.memory_advice(64, 1) is None


@pytest.mark.parametrize(
    ("peak", "kept", "took", "fits"),
    [
        # 2 GB for 64 examples; 90 % of 16 GB less 1 GB are room for 428, and 424 is a multiple of 8.
        (3, 1, "2.8 GiB", "14.9 GiB: some 424 examples a replica fit"),
        (14, 2, "13.0 GiB", "14.9 GiB, which is nearly all"),
    ],
)
def test_the_batch_that_fits(peak: int, kept: int, took: str, fits: str) -> None:
    def info(name: str) -> dict[str, int]:
        return {"current": kept * 10**9 - 10**6, "peak": peak * 10**9}

    meter = DeviceMeter(JOB, nvml=Nvml, memory_info=info, environment={})
    begin = f"the first steps took at most {took} of a device's memory"
    assert meter.memory_advice(64, 10**6) == f"{begin}, with 64 examples a replica; it has {fits}"
    assert DeviceMeter(JOB, nvml=raising(ImportError), memory_info=info, environment={}).memory_advice(64, 0) == begin
