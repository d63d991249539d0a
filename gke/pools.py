"""The node pools with accelerators, and the job of each. Data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pool:
    """`accelerator` is the value of `gcloud … --accelerator`, empty where the machine type implies it."""

    name: str
    machine: str
    job_accelerator: dict[str, Any]
    accelerator: str = ""
    spot: bool = False
    quota: str = ""

    @property
    def gpus(self) -> int:
        """Return the GPUs of one machine, which count for GPUS_ALL_REGIONS; TPUs have no number in a job."""
        return int(self.job_accelerator.get("countPerNode", 0))


POOLS = (
    Pool(
        "t4",
        "n1-standard-8",
        {"type": "nvidia-tesla-t4", "countPerNode": 1, "provisioning": "Spot"},
        accelerator="type=nvidia-tesla-t4,count=1,gpu-driver-version=latest",
        spot=True,
        quota="PREEMPTIBLE_NVIDIA_T4_GPUS",
    ),
    Pool(
        "a100",
        "a2-highgpu-1g",
        {"type": "nvidia-tesla-a100", "countPerNode": 1},
        accelerator="type=nvidia-tesla-a100,count=1,gpu-driver-version=latest",
        quota="NVIDIA_A100_GPUS",
    ),
    # One chip of one host: the smallest slice, which TensorFlow trains on without a mesh of workers.
    Pool(
        "v5e",
        "ct5lp-hightpu-1t",
        {"type": "tpu-v5-lite-podslice", "topology": "1x1"},
        quota="TPU_LITE_PODSLICE_V5",
    ),
)


def chosen(names: list[str]) -> tuple[Pool, ...]:
    """Return the pools with these names; all if there are none. Raises ValueError for an unknown name."""
    known = {pool.name: pool for pool in POOLS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--pools: {', '.join(unknown)}: unknown; there are {', '.join(known)}")
    return tuple(known[name] for name in known if not names or name in names)
