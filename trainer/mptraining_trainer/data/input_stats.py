"""Input statistics of one worker: the share of time that training waits for data, and advice to reduce it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mptraining_storage.ranges import Figures, Traffic

# In percent; a smaller share of a step needs no action.
REPORTED_PERCENT = 10.0
# Seconds of training after which the share no longer depends on the startup.
WARM_UP_SECONDS = 10.0


@dataclass
class InputMeter:
    """Counters that the reading threads update; `cache` is the cache that was chosen for the training data."""

    traffic: Traffic = field(default_factory=Traffic)
    remote: bool = False
    cache: str = "None"
    # Seconds for which the pipeline's source waited for bytes from the bucket or the disk.
    waited_for_bytes: float = 0.0
    first_record_seconds: float | None = None

    @property
    def figures(self) -> Figures:
        return self.traffic.figures


@dataclass
class InputInterval:
    """Training time since a moment, the part of it that was waiting for data, and the counters at that moment."""

    bytes_before: int = 0
    waited_for_bytes_before: float = 0.0
    seconds: float = 0.0
    waited_seconds: float | None = None

    @staticmethod
    def begin(meter: InputMeter) -> InputInterval:
        """Start from the meter's present counters."""
        return InputInterval(meter.figures.received, meter.waited_for_bytes)

    def add(self, seconds: float, waited_seconds: float | None) -> None:
        self.seconds += seconds
        if waited_seconds is not None:
            self.waited_seconds = (self.waited_seconds or 0.0) + min(waited_seconds, seconds)

    @property
    def bound_percent(self) -> float | None:
        """The share of waiting, 0 to 100; None if it was not measured."""
        return (
            round(100 * self.waited_seconds / self.seconds, 1)
            if self.seconds and self.waited_seconds is not None
            else None
        )

    def bytes_per_second(self, bytes_now: int) -> float | None:
        """Return the read rate; None if nothing came from a bucket."""
        fetched = bytes_now - self.bytes_before
        return round(fetched / self.seconds) if self.seconds and fetched > 0 else None


def advice(since: InputInterval, meter: InputMeter) -> str:
    """Return one sentence of advice if the device waits for data.

    Earlier reads, for an index or a cache, do not count.
    """
    prefix = f"the device waits for data {since.bound_percent or 0.0:.0f}% of the time"
    if meter.waited_for_bytes - since.waited_for_bytes_before < (since.waited_seconds or 0.0) / 2:
        if meter.cache == "Memory":
            return f"{prefix}, and preprocessing is what it waits for: give the pod more CPUs (podTemplate.resources)"
        return (
            f"{prefix}, and decoding and preprocessing are what it waits for: give the pod more CPUs "
            "(podTemplate.resources), store the images in their final size (mptj records convert --image-size), "
            "or set data.cache: Memory"
        )
    rate = (since.bytes_per_second(meter.figures.received) or 0.0) / 1e6
    if meter.remote and meter.cache == "None":
        return (
            f"{prefix}, and the bucket gives {rate:.0f} MB/s: set data.cache: Disk with room for all records in the "
            "pod's scratch space, or keep the bucket in the cluster's region"
        )
    if meter.remote and rate:
        return f"{prefix}, and the bucket gives {rate:.0f} MB/s: from the second epoch on the cache has the records"
    return f"{prefix}, and the disk is what it waits for: a faster volume, or data.cache: Memory"
