"""Validation of the arguments of `tensorflow_cloud.run`, in its order and with its messages.

Values that tensorflow-cloud would pass to its discontinued service, but that Kubernetes or the accelerator catalogue
does not support, are rejected here with an alternative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.tensorflow_cloud.machine_configs import (
    CATALOGUE,
    COMMON_MACHINE_CONFIGS,
    REPLACEMENTS,
    AcceleratorType,
    DockerConfig,
    MachineConfig,
)

_LABEL = re.compile(r"[a-z0-9_-]+")
_SERVICE_ACCOUNT = re.compile(r".*@([a-z0-9\-]){6,30}\.iam\.gserviceaccount\.com")


class InvalidArgument(InvalidSpec, ValueError):
    """An invalid argument of `run`; also a ValueError, as tensorflow-cloud's users expect."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        # tensorflow-cloud's messages end with a full stop, which must not precede the next step.
        super().__init__("", message.removesuffix(".") if next_step else message, next_step=next_step)


@dataclass(frozen=True, slots=True)
class RunArguments:
    """Validated arguments of `run` with every "auto" resolved.

    `machine` is the machine of every worker; `workers` includes the chief. `custom_shape`: the user chose CPU cores or
    memory. `image` is the image of the pods, None for the operator's default; `asked_image` is the image that the user
    named, for which the program was written. `bucket` is for packages that are too large for a ConfigMap.
    `any_machine`: the user named no machine, so that `machine` is tensorflow-cloud's default.
    """

    entry_point: str | None
    requirements: str | None
    distributed: bool
    machine: MachineConfig
    custom_shape: bool
    workers: int
    entry_point_args: tuple[str, ...]
    labels: Mapping[str, str]
    service_account: str | None
    image: str | None
    asked_image: str | None
    bucket: str | None
    notes: tuple[str, ...]
    any_machine: bool = False


def check_arguments(
    *,
    entry_point: object,
    requirements_txt: object,
    docker_config: Any,
    distribution_strategy: object,
    chief_config: object,
    worker_config: object,
    worker_count: Any,
    entry_point_args: object,
    stream_logs: object,
    job_labels: Mapping[str, str] | None,
    service_account: str | None,
    docker_base_image: str | None = None,
    docker_image_bucket_name: str | None = None,
) -> RunArguments:
    """Validate the arguments. Raises InvalidArgument, a ValueError, in tensorflow-cloud's order and words."""
    count = worker_count if isinstance(worker_count, int) else int(worker_count)
    docker = DockerConfig() if docker_config == "auto" else docker_config
    if not all(hasattr(docker, name) for name in ("image", "parent_image", "image_build_bucket")):
        raise InvalidArgument(
            f'Invalid `docker_config` input. Expected "auto" or `DockerConfig` instance. Received {docker_config}.'
        )
    _check_files(entry_point, requirements_txt)
    if distribution_strategy not in ("auto", None):
        raise InvalidArgument(
            f'Invalid `distribution_strategy` input. Expected "auto" or None. Received {distribution_strategy}.'
        )
    machine, workers, about_machines = _machines(chief_config, worker_config, count)
    custom_shape = _has_custom_shape(machine)
    machine, replaced = _with_current_accelerator(machine)
    _check_labels(job_labels or {})
    if entry_point_args is not None and not isinstance(entry_point_args, list):
        raise InvalidArgument(
            f"Invalid `entry_point_args` input. Expected None or a list. Received {entry_point_args}."
        )
    if not isinstance(stream_logs, bool):
        raise InvalidArgument(f"Invalid `stream_logs` input. Expected a boolean. Received {stream_logs}.")
    if service_account and not _SERVICE_ACCOUNT.match(service_account):
        raise InvalidArgument(
            "Invalid service_account: service_account should follow "
            f"service-account-name@project-id.iam.gserviceaccount.com Received: {service_account}."
        )
    asked_image = docker.parent_image or docker_base_image
    image, about_image = _image(asked_image)
    return RunArguments(
        entry_point=entry_point if isinstance(entry_point, str) else None,
        requirements=requirements_txt if isinstance(requirements_txt, str) else None,
        distributed=distribution_strategy == "auto",
        machine=machine,
        custom_shape=custom_shape,
        workers=workers,
        entry_point_args=tuple(str(arg) for arg in entry_point_args or ()),
        labels=dict(job_labels or {}),
        service_account=service_account or None,
        image=image,
        asked_image=asked_image,
        bucket=docker.image_build_bucket or docker_image_bucket_name,
        notes=(*about_machines, *replaced, *about_image),
        any_machine=(chief_config, worker_config) == ("auto", "auto"),
    )


def _check_files(entry_point: object, requirements_txt: object) -> None:
    """Raise InvalidArgument for missing files and other file types; a callable is validated when it is packaged."""
    for name, value in (("entry_point", entry_point), ("requirements_txt", requirements_txt)):
        if value is None or callable(value):
            continue
        if not isinstance(value, str) or not Path(value).is_file():
            folder = Path(str(value)).parent
            known = [str(path) for path in folder.glob("*.*")] if folder.is_dir() else []
            raise InvalidArgument(
                f"Invalid `{name}`. Expected a relative path in the current directory tree. Received: {value}",
                next_step=nearest(str(value), known),
            )
    if isinstance(entry_point, str) and not entry_point.endswith(("py", "ipynb")):
        raise InvalidArgument(
            f"Invalid `entry_point`. Expected a python file or an iPython notebook. Received: {entry_point}"
        )


def _machines(chief: object, worker: object, count: int) -> tuple[MachineConfig, int, list[str]]:
    """Return the machine of every worker, the number of workers, and notes."""
    automatic = COMMON_MACHINE_CONFIGS["T4_1X"]
    for name, value in (("chief_config", chief), ("worker_config", worker)):
        if value != "auto" and not isinstance(value, MachineConfig):
            raise InvalidArgument(
                f'Invalid `{name}` input. Expected "auto" or `MachineConfig` instance. Received {value}.'
            )
    first = chief if isinstance(chief, MachineConfig) else None
    others = worker if isinstance(worker, MachineConfig) else None
    if first is not None and first.accelerator.is_tpu:
        raise InvalidArgument(
            f"Invalid `chief_config` input. `chief_config` cannot be a TPU config. Received {first}.",
            next_step="Give it as worker_config, with worker_count=1.",
        )
    if count < 0:
        raise InvalidArgument(f"Invalid `worker_count` input. Expected 0 or more. Received {count}.")
    if others is not None and others.accelerator.is_tpu:
        if count != 1:
            raise InvalidArgument(
                f"Invalid `worker_count` input. Expected worker_count=1 for TPU `worker_config`. Received {count}."
            )
        _refuse_unavailable(others, "worker_config")
        return others, 1, ["a TPU job has no chief beside its TPU machine: chief_config is not used"]
    # All workers of a job are equal, so an "auto" config takes the value of the other one.
    machine = first or (others if count else None) or automatic
    _refuse_unavailable(machine, "chief_config" if first else "worker_config")
    kinds = [(config.accelerator, config.accelerator_count) for config in (machine, others or machine)]
    if count and others is not None and kinds[0] != kinds[1]:
        _refuse_unavailable(others, "worker_config")
        if _is_small_chief(machine, others):
            return others, count, [_without_chief(machine, others, count)]
        raise InvalidArgument(
            "Invalid `worker_config` input. Expected the accelerators of `chief_config`, as all workers of a job are "
            f"alike. Received {others}.",
            next_step="Give chief_config and worker_config the same MachineConfig.",
        )
    return machine, 1 + count, []


def _has_custom_shape(machine: MachineConfig) -> bool:
    """Return whether the user chose CPU cores or memory; the common configs have those of AI Platform's machines."""
    common = any(machine is config for config in COMMON_MACHINE_CONFIGS.values())
    return not common and (machine.cpu_cores, machine.memory) != (MachineConfig.cpu_cores, MachineConfig.memory)


def _is_small_chief(chief: MachineConfig, workers: MachineConfig) -> bool:
    """Return whether the chief has no accelerators, or fewer of the same type than the workers."""
    kinds = (workers.accelerator, AcceleratorType.NO_ACCELERATOR)
    return chief.accelerator in kinds and chief.accelerator_count < workers.accelerator_count


def _without_chief(chief: MachineConfig, workers: MachineConfig, count: int) -> str:
    small = f"{chief.accelerator_count} x {chief.accelerator.value}" if chief.accelerator_count else "a CPU"
    pods = f"{count} worker{'s' * (count > 1)} with {workers.accelerator_count} x {workers.accelerator.value}"
    return f"all workers of a job are alike: it asks for {pods}, and not for the chief with {small}"


def _refuse_unavailable(machine: MachineConfig, argument: str) -> None:
    """Raise InvalidArgument for retired accelerators without a replacement for that count, and for a count of 0."""
    kind, count = machine.accelerator, machine.accelerator_count
    if kind is not AcceleratorType.NO_ACCELERATOR and not count:
        raise InvalidArgument(f"Invalid `{argument}` input. Expected accelerator_count of 1 or more. Received 0.")
    if kind in CATALOGUE or _replacement(kind, count) is not None:
        return
    near = REPLACEMENTS[kind][0]
    common = {name: config for name, config in COMMON_MACHINE_CONFIGS.items() if config.accelerator is near}
    name = min(common, key=lambda key: abs(common[key].accelerator_count - count))
    raise InvalidArgument(
        f"Invalid `{argument}` input. {count} x {kind.value} are not among the accelerators that jobs can have.",
        next_step=f"The nearest is {CATALOGUE[near]}: COMMON_MACHINE_CONFIGS[{name!r}].",
    )


def _replacement(kind: AcceleratorType, count: int) -> AcceleratorType | None:
    """Return the first replacement of a retired accelerator (with at least its memory) that exists in that count."""
    for near in REPLACEMENTS.get(kind, ()):
        if near.is_tpu or count in accelerators.lookup(CATALOGUE[near]).counts:
            return near
    return None


def _with_current_accelerator(machine: MachineConfig) -> tuple[MachineConfig, list[str]]:
    """Replace a retired accelerator; return the machine, and a note if it was replaced."""
    kind, count = machine.accelerator, machine.accelerator_count
    near = None if kind in CATALOGUE else _replacement(kind, count)
    if near is None:
        return machine, []
    note = (
        f"{kind.value} is no longer offered: the job asks for {count} x {near.value} in place of {count} x {kind.value}"
    )
    return replace(machine, accelerator_type=near), [note]


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > 64:
        raise InvalidArgument(
            f"Invalid job labels: too many labels.Expecting at most 64 labels.Received {len(labels)}."
        )
    for key, value in labels.items():
        for word, what in ((key, "key"), (value, "value")):
            if not word or not word[0].islower():
                raise InvalidArgument(
                    f"Invalid job labels:Label {what} must start with lowercase letters.Received {word}."
                )
        if len(key) > 63:
            raise InvalidArgument(
                f"Invalid job labels:Label key is too long.Expecting at most 63 characters.Received {key}."
            )
        if len(value) > 63:
            raise InvalidArgument(
                f"Invalid job labels:Label value is too long for key {key}.Expecting at most 63 characters."
                f"Received {value}."
            )
        for word, what in ((key, "key"), (value, "value")):
            if not _LABEL.fullmatch(word):
                raise InvalidArgument(
                    f"Invalid job labels:Label {what} can only contain lowercase letters,"
                    f"numeric characters, underscores and dashes.Received: {word}."
                )
            if word[-1] in "-_":
                raise InvalidArgument(
                    f"Invalid job labels:Label {what} must end with a letter or a digit, as Kubernetes wants it."
                    f"Received: {word}."
                )


# Common parent images of tensorflow-cloud's users, which do not contain the trainer.
_WITHOUT_TRAINER = re.compile(r"(docker\.io/)?tensorflow/tensorflow(:|@|$)|gcr\.io/deeplearning-platform-release/")


def _image(parent: str | None) -> tuple[str | None, list[str]]:
    if parent is None:
        return None, []
    if _WITHOUT_TRAINER.match(parent):
        note = f"docker_config.parent_image: {parent} has no trainer in it; the trainer's own image is used"
        return None, [note]
    return parent, []
