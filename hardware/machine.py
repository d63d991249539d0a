"""The machine that is measured. `python -m hardware.machine` prints it as JSON, in a process of its own.

A process that has initialized a GPU keeps its memory, so the process that starts the measurements never does.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mptraining_api.accelerators import catalogue

# Files of NVIDIA's driver and of a TPU's driver, under /. Makefile chooses the environment by the same ones.
_FILES: dict[Literal["gpu", "tpu"], tuple[str, ...]] = {
    "gpu": ("proc/driver/nvidia", "dev/nvidia*"),
    "tpu": ("dev/accel[0-9]*", "dev/vfio/[0-9]*"),
}
# A CPU is split into so many logical devices for the part about several devices.
_LOGICAL_CPUS = 2
# Numbers of devices of which the book states speedups.
COUNTS = (1, 2, 4, 8)
_AMPERE = 8.0


@dataclass(frozen=True)
class Machine:
    """`device` is the accelerator's own name, `accelerator` its name in the catalogue; memory in bytes."""

    kind: Literal["cpu", "gpu", "tpu"]
    device: str
    accelerator: str
    count: int
    capability: float | None
    cpu: str
    cores: int
    memory: int
    tensorflow: str
    keras: str
    driver: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def catalogue_name(device: str, capability: float | None, count: int) -> str:
    """Return the catalogue's name of a GPU, by NVIDIA's product name; of others that of a similar one.

    Locally the name decides only how many devices a job may ask for; the policy of each measurement is given. Google
    sells some GPUs in eights only: a job on one of them needs another name.
    """
    label = device.replace(" ", "-")
    asked = {number for number in COUNTS if number <= count}
    for name, accelerator in catalogue().items():
        if label in accelerator.products and asked <= set(accelerator.counts):
            return name
    return "nvidia-l4" if capability is None or capability >= _AMPERE else "nvidia-tesla-v100"


def leading_alike(devices: Sequence[tuple[str, float | None]]) -> int:
    """Return how many devices of the first one's name and capability come first: only they are measured together."""
    return sum(1 for _ in itertools.takewhile(lambda device: device == devices[0], devices))


class DeviceNotListed(Exception):
    """The machine has a GPU or TPU that TensorFlow does not list; the message has the next step."""


def check_none(root: Path, *, cuda: bool) -> None:
    """Raise DeviceNotListed if a driver's file is under `root`, although TensorFlow lists neither GPU nor TPU.

    `cuda` is whether this TensorFlow was built with CUDA.
    """
    for kind, patterns in _FILES.items():
        file = next((file for pattern in patterns for file in sorted(root.glob(pattern))), None)
        if file is None:
            continue
        has = f"the machine has a {kind.upper()} ({file}), but "
        if kind == "gpu" and cuda:
            raise DeviceNotListed(
                f"{has}TensorFlow lists none: see whether `nvidia-smi` lists it, and whether CUDA_VISIBLE_DEVICES "
                "hides it"
            )
        lacks = "is without CUDA" if kind == "gpu" else "lists none"
        raise DeviceNotListed(
            f"{has}this TensorFlow {lacks}: run `make hardware`, whose TensorFlow is in build/hardware-tools/{kind}"
        )


def detect(root: Path = Path("/")) -> Machine:
    """Return this machine; initializes no device. Raises DeviceNotListed."""
    import psutil
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    model = _cpu_model(Path("/proc/cpuinfo"))
    common: dict[str, Any] = {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "tensorflow": tf.__version__,
        # That of tf_keras on a TPU.
        "keras": tf.keras.__version__,
    }
    if gpus:
        found = [_details(tf.config.experimental.get_device_details(gpu)) for gpu in gpus]
        (name, capability), count = found[0], leading_alike(found)
        listed = catalogue_name(name, capability, count)
        return Machine("gpu", name, listed, count, capability, driver=_driver(), **common)
    tpus = tf.config.list_physical_devices("TPU")
    if tpus:
        kind = os.environ.get("TPU_ACCELERATOR_TYPE", "TPU")
        return Machine("tpu", kind, "tpu-v5-lite-podslice", len(tpus), None, **common)
    check_none(root, cuda=bool(tf.sysconfig.get_build_info().get("is_cuda_build")))
    return Machine("cpu", model, "cpu", _LOGICAL_CPUS, None, **common)


def _details(details: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return name and compute capability of a GPU; None for one that TensorFlow does not know."""
    version = details.get("compute_capability")
    return details.get("device_name", "GPU"), float("{}.{}".format(*version)) if version else None


def _cpu_model(cpuinfo: Path) -> str:
    found = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _driver() -> str | None:
    """Return NVIDIA's driver version, None where NVML is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # noqa: BLE001 - the version is a remark on the page; no fault of NVML may end the run
        return None
    return version.decode() if isinstance(version, bytes) else str(version)


if __name__ == "__main__":
    try:
        print(json.dumps(detect().to_json()))
    except DeviceNotListed as error:
        print(json.dumps({"fault": str(error)}))
