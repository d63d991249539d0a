"""Devices of a job: workers, replicas per worker, tf.distribute strategy.

`requested_devices` returns those of the spec, `without_accelerators` those of the same job after a CPU fallback.
"""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api import accelerators
from mptraining_api.accelerators import AcceleratorType
from mptraining_api.machines.node_labels import NodeLabels
from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.resolved_job import Choice, ResolvedAccelerator, Strategy
from mptraining_api.spec import JobSpec, Machine

FELL_BACK = "FellBackToCPU"
# The fat binaries in TensorFlow 2.21's and 2.22.0rc0's wheels end at 9.0, without PTX that a newer GPU could compile.
_CAPABILITY_WITHOUT_KERNELS = 10.0


@dataclass(frozen=True, slots=True)
class Devices:
    """`workers` pods in parallel, each with `replicas_per_worker` replicas of the model."""

    accelerator: ResolvedAccelerator
    workers: int
    replicas_per_worker: int
    choices: tuple[Choice, ...] = ()

    @property
    def replicas(self) -> int:
        return self.workers * self.replicas_per_worker


def requested_devices(spec: JobSpec, node_labels: NodeLabels = "GKE") -> Devices:
    """Return the devices that the spec requests, before a CPU fallback. Raises InvalidSpec if no machine has them."""
    device = accelerators.lookup(spec.accelerator.type)
    _check_partition(spec.accelerator, device)
    if device.kind == "tpu":
        return _tpu(spec.accelerator, device, spec.workers)
    # On machines that are not GKE's, a pod may use a part of the GPUs.
    count, choices = _count(spec, device, any_count=node_labels != "GKE")
    workers = spec.elastic.max if spec.elastic else spec.workers or 1
    return Devices(_resolved(spec.accelerator, device, count), workers, count, choices)


def _check_partition(machine: Machine, device: AcceleratorType) -> None:
    # The rules refuse a slice of anything but a GPU.
    if machine.partition is None or machine.partition in device.partitions or device.kind != "gpu":
        return
    others = [entry.name for entry in accelerators.catalogue().values() if machine.partition in entry.partitions]
    step = f"Such slices are those of {_join_or(others)}." if others else nearest(machine.partition, device.partitions)
    raise InvalidSpec(
        accelerators.PARTITION,
        f"{device.title} has no slice {machine.partition!r}",
        expected=_join_or(device.partitions) if device.partitions else "whole GPUs, without partition",
        next_step=step,
    )


def _count(spec: JobSpec, device: AcceleratorType, *, any_count: bool) -> tuple[int, tuple[Choice, ...]]:
    count = spec.accelerator.count_per_worker
    if spec.accelerator.partition:
        return 1, (Choice(field=accelerators.COUNT, value="1", because="a process uses one slice of a GPU"),)
    if count is not None:
        possible = range(1, max(8, *device.counts) + 1) if any_count and device.counts else device.counts
        if possible and count not in possible:
            offered = f"1 to {max(possible)}" if any_count else _join_or(device.counts)
            raise InvalidSpec(
                accelerators.COUNT,
                f"no machine has {count} x {device.title}",
                expected=offered,
                next_step="Take the next larger count, or more workers.",
            )
        return count, ()
    count = device.counts[0] if device.counts else 1
    thing = "logical device" if device.kind == "cpu" else device.title
    because = (
        f"the smallest machine with {device.title}"
        if device.kind == "gpu"
        else f"one {thing} unless more are asked for"
    )
    return count, (Choice(field=accelerators.COUNT, value=str(count), because=because),)


def _tpu(machine: Machine, device: AcceleratorType, workers: int | None) -> Devices:
    if machine.topology is None:
        raise InvalidSpec(
            accelerators.TOPOLOGY,
            "missing",
            expected=f"such as {', '.join(list(device.topologies)[:8])}",
            next_step="A TPU slice is chosen by its topology.",
        )
    options = accelerators.chips_per_pod(device, machine.topology)
    chips = machine.count_per_worker or options[0]
    if chips not in options:
        raise InvalidSpec(
            accelerators.COUNT,
            f"{chips} chips per worker for {device.name} {machine.topology}",
            expected=_join_or(options),
        )
    pods = accelerators.pods(machine.topology, chips)
    if pods > 1:
        single = [name for name, per_pod in device.topologies.items() if accelerators.chips(name) in per_pod]
        raise InvalidSpec(
            accelerators.TOPOLOGY,
            f"{machine.topology} with {chips} chips per worker spans {pods} machines, on which TensorFlow cannot train",
            expected=f"one machine: {_join_or(single)}" if single else "an accelerator that fits on one machine",
            next_step="Take a smaller topology.",
        )
    if workers not in (None, 1):
        raise InvalidSpec(
            "spec.workers",
            f"{workers}, but {machine.topology} is one machine",
            expected="no workers for a TPU, whose topology decides them",
            next_step="Leave workers out.",
        )
    choices: tuple[Choice, ...] = ()
    if machine.count_per_worker is None:
        because = f"a machine of a {machine.topology} slice has {chips} chips"
        if len(options) > 1:
            because = (
                f"{machine.topology} comes with {_join_or(options)} chips on a machine; {chips} keeps it on one machine"
            )
        choices = (Choice(field=accelerators.COUNT, value=str(chips), because=because),)
    return Devices(_resolved(machine, device, chips), 1, chips * device.replicas_per_device, choices)


def _resolved(machine: Machine, device: AcceleratorType, count: int) -> ResolvedAccelerator:
    return ResolvedAccelerator(
        type=device.name,
        kind=device.kind,
        title=device.title,
        count_per_worker=count,
        topology=machine.topology,
        provisioning=machine.provisioning or "OnDemand",
        reservation=machine.reservation,
        partition=machine.partition,
        compute_capability=device.compute_capability,
    )


def check_kernels(spec: JobSpec, devices: Devices) -> None:
    """Refuse a GPU that the trainer's images cannot compute on, unless the job names its own image."""
    accelerator = devices.accelerator
    newer = (accelerator.compute_capability or 0.0) >= _CAPABILITY_WITHOUT_KERNELS
    if newer and not (spec.pod_template and spec.pod_template.image):
        raise InvalidSpec(
            accelerators.TYPE,
            f"{accelerator.title}: TensorFlow's wheels have no kernels for its compute capability "
            f"{accelerator.compute_capability}",
            expected=f"a GPU of compute capability below {_CAPABILITY_WITHOUT_KERNELS}",
            next_step="Choose such a GPU, or name an image with a TensorFlow built for this one in podTemplate.image.",
        )


def without_accelerators(devices: Devices, *, splits_in_two: bool) -> Devices:
    """Return the devices without accelerators: one logical device on each worker, or two on the only one.

    `splits_in_two`: whether the job has several replicas, and can have two (its global batch is divisible by 2).
    """
    before = devices.accelerator
    if before.kind == "cpu":
        return devices
    cpu = accelerators.lookup("cpu")
    workers = devices.workers
    # Two logical devices give the strategy several replicas, as accelerators do; MultiWorkerMirroredStrategy would use
    # only one of them.
    count = 2 if workers == 1 and splits_in_two else 1
    accelerator = ResolvedAccelerator(
        type=cpu.name, kind="cpu", title=cpu.title, count_per_worker=count, asked_for=before.type
    )
    because = (
        f"{FELL_BACK}: there is no {before.title} here and cpuFallback is on; the global batch size stays as it was"
    )
    choice = Choice(field=accelerators.TYPE, value="cpu", because=because)
    return Devices(accelerator, workers, count, (*devices.choices, choice))


def strategy(spec: JobSpec, devices: Devices) -> tuple[Strategy, Choice]:
    """Return the tf.distribute strategy for these devices. Raises InvalidSpec for None on a TPU or several devices."""
    if spec.strategy == "None":
        return _no_strategy(spec, devices)
    kind, title = devices.accelerator.kind, devices.accelerator.title
    if kind == "tpu":
        picked: Strategy = "TPU"
        because = f"{title} on one worker"
    elif spec.program.prediction is not None:
        picked = "Mirrored"
        because = "each worker predicts records of its own"
    elif devices.workers > 1:
        picked = "MultiWorkerMirrored"
        because = f"{devices.workers} workers"
    elif devices.replicas == 1:
        # A reduction over one device copies its tensors, and in a strategy's scope a script's own loop fails.
        picked = "None"
        because = "one device"
    else:
        picked = "Mirrored"
        because = f"one worker with {devices.replicas} devices"
    return picked, Choice(field="spec.strategy", value=picked, because=because)


def _no_strategy(spec: JobSpec, devices: Devices) -> tuple[Strategy, Choice]:
    if spec.program.script is not None:
        because = "asked for: the script makes its own"
    else:
        because = "asked for: one device"
        if devices.accelerator.kind == "tpu" or devices.replicas > 1:
            hardware = devices.accelerator.title if devices.replicas == 1 else f"{devices.replicas} replicas"
            raise InvalidSpec(
                "spec.strategy",
                f"'None' with {hardware}",
                expected="one device that is no TPU",
                next_step="Write strategy: Auto, or ask for one device.",
            )
    return "None", Choice(field="spec.strategy", value="None", because=because)


def _join_or(values: tuple[int, ...] | tuple[str, ...] | list[str]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
