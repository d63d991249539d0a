"""What reading the data costs one worker, and what would make it cheaper."""

from __future__ import annotations

from dataclasses import dataclass, field

from mptraining_records.storage.ranges import Figures, Traffic

# Below this share of a step nobody need do anything.
WORTH_SAYING = 10.0
# Seconds of training after which a share is no accident of the beginning.
STEADY = 10.0


@dataclass
class InputMeter:
    """Filled while data is read, by the threads that read it; `cache` is what was decided for the training data."""

    traffic: Traffic = field(default_factory=Traffic)
    remote: bool = False
    cache: str = "None"
    # Seconds in which the pipeline's source waited for bytes, of the bucket or the disk.
    waited_for_bytes: float = 0.0
    first_record_seconds: float | None = None

    @property
    def figures(self) -> Figures:
        return self.traffic.figures


@dataclass
class InputSince:
    """The time of training since some moment, how much of it was waiting, and what had been read until then."""

    bytes_before: int = 0
    waited_for_bytes_before: float = 0.0
    seconds: float = 0.0
    waited: float | None = None

    @staticmethod
    def begin(meter: InputMeter) -> InputSince:
        """From now on."""
        return InputSince(meter.figures.bytes, meter.waited_for_bytes)

    def add(self, seconds: float, waited: float | None) -> None:
        self.seconds += seconds
        if waited is not None:
            self.waited = (self.waited or 0.0) + min(waited, seconds)

    @property
    def bound_percent(self) -> float | None:
        """0 to 100; None where nobody measured it."""
        return round(100 * self.waited / self.seconds, 1) if self.seconds and self.waited is not None else None

    def bytes_per_second(self, bytes_now: int) -> float | None:
        """None where nothing came from a bucket."""
        fetched = bytes_now - self.bytes_before
        return round(fetched / self.seconds) if self.seconds and fetched > 0 else None


def advice(since: InputSince, meter: InputMeter) -> str:
    """One sentence for a device that waits for data; what was read before, for an index or a cache, does not count."""
    said = f"the device waits for data {since.bound_percent or 0.0:.0f}% of the time"
    if meter.waited_for_bytes - since.waited_for_bytes_before < (since.waited or 0.0) / 2:
        if meter.cache == "Memory":
            return f"{said}, and preprocessing is what it waits for: give the pod more CPUs (podTemplate.resources)"
        return (
            f"{said}, and decoding and preprocessing are what it waits for: give the pod more CPUs "
            "(podTemplate.resources), store the images in their final size (mptj records convert --image-size), "
            "or set data.cache: Memory"
        )
    rate = (since.bytes_per_second(meter.figures.bytes) or 0.0) / 1e6
    if meter.remote and meter.cache == "None":
        return (
            f"{said}, and the bucket gives {rate:.0f} MB/s: set data.cache: Disk with room for all records in the "
            "pod's scratch space, or keep the bucket in the cluster's region"
        )
    if meter.remote and rate:
        return f"{said}, and the bucket gives {rate:.0f} MB/s: from the second epoch on the cache has the records"
    return f"{said}, and the disk is what it waits for: a faster volume, or data.cache: Memory"
