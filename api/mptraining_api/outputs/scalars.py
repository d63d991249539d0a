"""A run's metrics as series of scalars by step, as TensorBoard, MLflow and Weights & Biases take them. Pure.

train       loss, accuracy, …; training/learning_rate, speed/step_seconds, system/cpu_percent, …
validation  loss, accuracy, …
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mptraining_api.events import Event, Progress, Started, gauges, restart_step

TRAIN: Literal["train"] = "train"
VALIDATION: Literal["validation"] = "validation"
_VALIDATION_PREFIX = "val_"

# Fields of Progress by the group in which they are drawn.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "training": ("learning_rate", "gradient_norm", "loss_scale", "skipped_steps", "recoveries"),
    "speed": ("step_seconds", "examples_per_second", "input_bound_percent", "input_bytes_per_second"),
    "system": (
        "cpu_percent",
        "memory_used_bytes",
        "peak_memory_bytes",
        "disk_read_bytes_per_second",
        "disk_write_bytes_per_second",
        "network_receive_bytes_per_second",
        "network_send_bytes_per_second",
        "device_utilization_percent",
        "device_memory_used_bytes",
        "device_memory_peak_bytes",
        "device_power_watts",
        "device_temperature_celsius",
    ),
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value at a step; `time` in seconds since 1970."""

    run: Literal["train", "validation"]
    tag: str
    step: int
    time: float
    value: float

    @property
    def name(self) -> str:
        """The name of the series where there is one list of names: validation's with `val_`."""
        return self.tag if self.run == TRAIN else f"{_VALIDATION_PREFIX}{self.tag}"


@dataclass(frozen=True, slots=True)
class Restart:
    """Training continues after `step`: values of later steps, which are trained again, are void."""

    step: int
    time: float


class ScalarSeries:
    """Converts the chief's events, in order of time, to scalars and restarts."""

    def __init__(self) -> None:
        # The last step of the series; before the first event of an attempt it is unknown.
        self._last: float = math.inf
        self._validated: dict[str, float] = {}
        self._validated_at = 0

    def add(self, event: Event) -> list[Scalar | Restart]:
        added: list[Scalar | Restart] = []
        step = restart_step(event)
        if step is None and isinstance(event, Started):
            # The first Progress of the attempt tells where it continues.
            self._last = math.inf
        if step is not None and (step < self._last or not isinstance(event, Progress)):
            self._last = step
            if step < self._validated_at:
                self._validated = {}
            added.append(Restart(step, event.time))
        if isinstance(event, Progress):
            self._last = event.step
            added += self.at_step(event.step, event.time, event.metrics, gauges(event))
        return added

    def at_step(
        self, step: int, time: float, metrics: Mapping[str, float], gauges: Mapping[str, float]
    ) -> Iterator[Scalar]:
        """Yield the scalars of a step that is later than those before."""
        validated = of_validation(metrics)
        for name, value in metrics.items():
            if name not in validated:
                yield Scalar(TRAIN, name, step, time, value)
        if is_new_validation(metrics, self._validated):
            self._validated, self._validated_at = validated, step
            for name, value in validated.items():
                yield Scalar(VALIDATION, name.removeprefix(_VALIDATION_PREFIX), step, time, value)
        for group, names in _GROUPS.items():
            for name in names:
                if name in gauges:
                    yield Scalar(TRAIN, f"{group}/{name}", step, time, float(gauges[name]))


def of_validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the validation metrics of a Progress event."""
    return {name: value for name, value in metrics.items() if name.startswith(_VALIDATION_PREFIX)}


def is_new_validation(metrics: Mapping[str, float], before: Mapping[str, float]) -> bool:
    """Return whether the values of validation differ from those `before`: Progress repeats them until the next one."""
    # NaN does not equal itself.
    return str(of_validation(metrics)) != str(of_validation(before))
