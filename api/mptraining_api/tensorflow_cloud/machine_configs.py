"""Machine configurations of tensorflow-cloud, and the accelerators of the catalogue that they stand for.

Used by the client, which submits, and by the trainer, which runs the same program again. Standard library only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal


class AcceleratorType(enum.Enum):
    """Accelerator types: those of tensorflow-cloud, then those that came later."""

    NO_ACCELERATOR = "CPU"
    NVIDIA_TESLA_K80 = "K80"
    NVIDIA_TESLA_P100 = "P100"
    NVIDIA_TESLA_V100 = "V100"
    NVIDIA_TESLA_P4 = "P4"
    NVIDIA_TESLA_T4 = "T4"
    TPU_V2 = "TPU_V2"
    TPU_V3 = "TPU_V3"
    NVIDIA_L4 = "L4"
    NVIDIA_TESLA_A100 = "A100"
    NVIDIA_A100_80GB = "A100_80GB"
    NVIDIA_H100_80GB = "H100"
    TPU_V5E = "TPU_V5E"
    TPU_V6E = "TPU_V6E"

    @classmethod
    def all(cls) -> tuple[AcceleratorType, ...]:
        return tuple(cls)

    @classmethod
    def validate(cls, key: object) -> None:
        if not isinstance(key, cls):
            raise ValueError(f"Invalid accelerator key provided: {key}.")

    @property
    def is_tpu(self) -> bool:
        return self.value.startswith("TPU_")


# Canonical names in the catalogue. Types without an entry are no longer available.
CATALOGUE = {
    AcceleratorType.NO_ACCELERATOR: "cpu",
    AcceleratorType.NVIDIA_TESLA_V100: "v100",
    AcceleratorType.NVIDIA_TESLA_T4: "t4",
    AcceleratorType.TPU_V3: "v3",
    AcceleratorType.NVIDIA_L4: "l4",
    AcceleratorType.NVIDIA_TESLA_A100: "a100",
    AcceleratorType.NVIDIA_A100_80GB: "a100-80gb",
    AcceleratorType.NVIDIA_H100_80GB: "h100",
    AcceleratorType.TPU_V5E: "v5e",
    AcceleratorType.TPU_V6E: "v6e",
}

# Replacements of types that are no longer available, with at least as much memory: K80 12 GB and P4 8 GB by T4 16 GB,
# P100 16 GB by V100 (NVIDIA's data sheets); a TPU v3 core has 16 GB, a v2 core 8. The first one that exists with the
# same count is used: machines have 8 x V100, but not 8 x T4. The replaced GPUs have a compute capability below 7.0 and
# no Tensor Cores.
REPLACEMENTS = {
    AcceleratorType.NVIDIA_TESLA_K80: (AcceleratorType.NVIDIA_TESLA_T4, AcceleratorType.NVIDIA_TESLA_V100),
    AcceleratorType.NVIDIA_TESLA_P4: (AcceleratorType.NVIDIA_TESLA_T4, AcceleratorType.NVIDIA_TESLA_V100),
    AcceleratorType.NVIDIA_TESLA_P100: (AcceleratorType.NVIDIA_TESLA_V100,),
    AcceleratorType.TPU_V2: (AcceleratorType.TPU_V3,),
}


@dataclass(eq=False)
class MachineConfig:
    """One machine: CPU cores, memory in GB, accelerators. `"auto"` means a T4."""

    cpu_cores: int | None = 8
    memory: float | None = 30
    accelerator_type: AcceleratorType | Literal["auto"] = "auto"
    accelerator_count: int = 1

    def __post_init__(self) -> None:
        if self.accelerator_type == "auto":
            self.accelerator_type = AcceleratorType.NVIDIA_TESLA_T4
        self.validate()

    @property
    def accelerator(self) -> AcceleratorType:
        """The accelerator type, with `"auto"` replaced."""
        assert isinstance(self.accelerator_type, AcceleratorType)
        return self.accelerator_type

    def validate(self) -> None:
        """Raise ValueError if the values are invalid. The catalogue checks the accelerator count later, on use."""
        AcceleratorType.validate(self.accelerator_type)
        count = self.accelerator_count
        positive = [amount for amount in (self.cpu_cores, self.memory) if amount is not None]
        if (
            type(count) is not int
            or count < 0
            or any(not isinstance(amount, (int, float)) or amount <= 0 for amount in positive)
        ):
            raise ValueError(
                f"Invalid machine configuration: cpu_cores:{self.cpu_cores}, memory:{self.memory}, "
                f"accelerator_type:{self.accelerator_type}, accelerator_count:{count}."
            )


def _gpus(kind: AcceleratorType, *counts: int) -> dict[str, MachineConfig]:
    """Return the configurations for `counts`, with the CPU cores and memory of tensorflow-cloud."""
    sizes = {1: (8, 30), 2: (16, 60), 4: (16, 60), 8: (32, 120)}
    return {f"{kind.value}_{count}X": MachineConfig(*sizes[count], kind, count) for count in counts}


COMMON_MACHINE_CONFIGS = {
    "CPU": MachineConfig(4, 15, AcceleratorType.NO_ACCELERATOR, 0),
    **_gpus(AcceleratorType.NVIDIA_TESLA_K80, 1, 4, 8),
    **_gpus(AcceleratorType.NVIDIA_TESLA_P100, 1, 4),
    **_gpus(AcceleratorType.NVIDIA_TESLA_P4, 1, 4),
    **_gpus(AcceleratorType.NVIDIA_TESLA_V100, 1, 4, 8),
    **_gpus(AcceleratorType.NVIDIA_TESLA_T4, 1, 4),
    "TPU": MachineConfig(None, None, AcceleratorType.TPU_V3, 8),
    **_gpus(AcceleratorType.NVIDIA_L4, 1, 2, 4),
    **_gpus(AcceleratorType.NVIDIA_TESLA_A100, 1, 2, 4, 8),
    **_gpus(AcceleratorType.NVIDIA_H100_80GB, 8),
}


def is_tpu_config(config: MachineConfig | None) -> bool:
    """Return whether a machine has TPUs, like `tensorflow_cloud.core.machine_config`."""
    return config is not None and config.accelerator.is_tpu


class DockerConfig:
    """Image settings of tensorflow-cloud. No image is built here; `run` reports how it treats each setting."""

    def __init__(
        self,
        image: str | None = None,
        parent_image: str | None = None,
        cache_from: str | None = None,
        image_build_bucket: str | None = None,
    ) -> None:
        self.image = image
        self.parent_image = parent_image
        self.cache_from = cache_from or image
        self.image_build_bucket = image_build_bucket
