"""The ways to run one script, and the job of each way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

BFLOAT16, FLOAT16, FLOAT32 = "mixed_bfloat16", "mixed_float16", "float32"


@dataclass(frozen=True)
class Variant:
    """`plain`: Keras alone; `script` and `function`: the trainer with that kind of program."""

    kind: Literal["plain", "script", "function"]
    devices: int = 1
    policy: str = FLOAT32

    def __str__(self) -> str:
        return f"{self.kind}-{self.devices}-{self.policy}"

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Return the variant of that name. Raises ValueError."""
        kind, devices, policy = text.split("-")
        if kind not in ("plain", "script", "function"):
            raise ValueError(f"{text}: no variant; expected plain, script or function, a number and a policy")
        return cls(kind, int(devices), policy)  # type: ignore[arg-type]

    @property
    def plain(self) -> Variant:
        """Return the same devices and policy under Keras alone."""
        return Variant("plain", self.devices, self.policy)


PLAIN = Variant("plain")
SCRIPTS = tuple(Variant("script", devices, policy) for policy in (FLOAT32, BFLOAT16) for devices in (1, 2))
FUNCTIONS = tuple(Variant("function", devices, policy) for policy in (FLOAT32, BFLOAT16) for devices in (1, 2))
# float16 is emulated on CPUs, hence slow: for some scripts only.
SAMPLE = Variant("script", 1, FLOAT16)
ALL = (PLAIN, *SCRIPTS, SAMPLE, *FUNCTIONS)


def job(variant: Variant, program: Mapping[str, Any], extra: Mapping[str, Any], output: str) -> dict[str, Any]:
    """Return the MPTrainingJob's document; `extra` are further sections of its spec."""
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": "keras-io"},
        "spec": {
            "accelerator": {"type": "cpu", "countPerNode": variant.devices},
            "precision": {"policy": variant.policy},
            "program": dict(program),
            "output": {"uri": output},
            **extra,
        },
    }
