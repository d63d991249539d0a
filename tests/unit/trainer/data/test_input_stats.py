"""The share of the time that the device waited for data, and the advice about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_trainer.data.input_stats import InputInterval, InputMeter, advice

times = st.lists(st.tuples(st.floats(0.001, 100), st.none() | st.floats(0, 200)), max_size=20)


@given(times)
def test_the_share_is_between_zero_and_one(executions: list[tuple[float, float | None]]) -> None:
    since = InputInterval()
    for seconds, waited in executions:
        since.add(seconds, waited)
    measured = any(waited is not None for _, waited in executions)
    assert (since.bound_percent is not None) == measured
    assert 0 <= (since.bound_percent or 0) <= 100


def test_the_share_is_that_of_all_executions_and_the_speed_of_what_came_since() -> None:
    meter = InputMeter()
    meter.traffic.add(received=10_000_000)
    since = InputInterval.begin(meter)
    since.add(3.0, 0.0)
    since.add(1.0, 1.0)
    assert since.bound_percent == 25.0
    assert since.bytes_per_second(meter.figures.received) is None
    meter.traffic.add(received=12_000_000)
    assert since.bytes_per_second(meter.figures.received) == 3_000_000


CPU = "decoding and preprocessing are what it waits for: give the pod more CPUs"


@pytest.mark.parametrize(
    ("remote", "cache", "for_bytes", "said"),
    [
        (True, "None", 0.0, CPU),
        (True, "Disk", 3.9, CPU),
        (False, "None", 0.0, CPU),
        (True, "Memory", 0.0, "preprocessing is what it waits for: give the pod more CPUs (podTemplate.resources)"),
        (True, "None", 4.1, "the bucket gives 25 MB/s: set data.cache: Disk"),
        (True, "None", 900.0, "the bucket gives 25 MB/s: set data.cache: Disk"),
        (True, "Disk", 8.0, "the bucket gives 25 MB/s: from the second epoch on the cache has the records"),
        (False, "None", 8.0, "the disk is what it waits for: a faster volume, or data.cache: Memory"),
    ],
)
@pytest.mark.parametrize("before", [0.0, 500.0])
def test_advice(remote: bool, cache: str, for_bytes: float, said: str, before: float) -> None:
    """8 of 20 seconds were waits; bytes that were read `before`, for the index or into memory, change nothing."""
    meter = InputMeter(remote=remote, cache=cache, waited_for_bytes=before)
    meter.traffic.add(received=int(before * 1e9))
    since = InputInterval.begin(meter)
    since.add(20.0, 8.0)
    meter.waited_for_bytes += for_bytes
    meter.traffic.add(received=500_000_000 if remote else 0)
    text = advice(since, meter)
    assert text.startswith("the device waits for data 40% of the time, and ")
    assert said in text
    assert "\n" not in text
    assert ("data.cache: Memory" in text) <= (cache != "Memory")
    if meter.remote and meter.cache == "Disk" and for_bytes > 4:
        # A full cache that is too slow is a slow disk.
        since.bytes_before = meter.figures.received
        assert "the disk is what it waits for" in advice(since, meter)
