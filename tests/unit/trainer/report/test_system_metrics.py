"""CPU, memory, disk and network of a worker, by a cgroup's files that the test writes, and by this process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mptraining_api.events import Progress
from mptraining_trainer.host import Cgroup
from mptraining_trainer.report.system_metrics import SystemMeter
from tests.fakes import Clock


def read_from(folder: Path) -> Cgroup:
    return Cgroup(folder, folder / "absent")


def write(cgroup: Path, **files: str) -> None:
    for name, content in files.items():
        (cgroup / name.replace("_", ".", 1)).write_text(content)


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A pod with half a CPU and 1 GB."""
    write(
        tmp_path,
        cgroup_controllers="cpu io memory\n",
        cpu_stat="usage_usec 1000000\nuser_usec 1\n",
        cpu_max="50000 100000\n",
        memory_current="500000000\n",
        memory_max="1000000000\n",
        memory_stat="anon 1\ninactive_file 100000000\nactive_file 50000000\n",
        io_stat="8:0 rbytes=1000 wbytes=2000 rios=1\n8:16 rbytes=1 wbytes=2\n",
    )
    return tmp_path


def test_the_figures_of_a_container(container: Path) -> None:
    clock = Clock()
    meter = SystemMeter(clock, read_from(container))
    clock.now += 10
    write(container, cpu_stat="usage_usec 3000000\n", io_stat="8:0 rbytes=11000 wbytes=2000\n8:16 rbytes=1 wbytes=52\n")
    found = meter.read()
    assert meter.read() == found, "rates of no time"
    assert found["cpu_percent"] == 40.0, "2 seconds of CPU in 10, of half a CPU"
    assert found["memory_used_bytes"] == 350_000_000, "without the page cache"
    assert found["memory_limit_bytes"] == 1_000_000_000
    assert found["disk_read_bytes_per_second"] == 1000.0
    assert found["disk_write_bytes_per_second"] == 5.0
    assert Progress(time=1, attempt=1, incarnation="a", worker=0, step=1, epoch=1, metrics={}, **found)  # type: ignore[arg-type]


def test_without_a_limit_the_machines_counts(container: Path) -> None:
    write(container, memory_max="max\n", cpu_max="max 100000\n")
    clock = Clock()
    meter = SystemMeter(clock, read_from(container))
    clock.now += 1
    write(container, cpu_stat="usage_usec 1500000\n")
    found = meter.read()
    assert found["memory_limit_bytes"] > 1_000_000_000
    assert found["cpu_percent"] == pytest.approx(50 / len(os.sched_getaffinity(0)), abs=0.1)


def test_outside_of_a_container_they_are_the_processs_own(tmp_path: Path) -> None:
    meter = SystemMeter(time.monotonic, read_from(tmp_path))
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    found = meter.read()
    assert found["cpu_percent"] > 0
    assert 10e6 < found["memory_used_bytes"] < found["memory_limit_bytes"]
    write(tmp_path, cgroup_controllers="", memory_current="a cgroup without its files")
    assert SystemMeter(time.monotonic, read_from(tmp_path)).read()["memory_used_bytes"] > 0


@pytest.mark.parametrize(("cards", "received"), [(["eth0"], 1.0), ([], 11.0)])
def test_a_bridge_does_not_count_a_cards_traffic_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: list[str], received: float
) -> None:
    for card in cards:
        (tmp_path / card / "device").mkdir(parents=True)
    counts = {"lo": 5, "eth0": 1, "docker0": 10}

    def counters(pernic: bool) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(bytes_recv=count * clock.now, bytes_sent=0) for name, count in counts.items()}

    clock = Clock()
    monkeypatch.setattr("psutil.net_io_counters", counters)
    meter = SystemMeter(clock, read_from(tmp_path), tmp_path)
    clock.now += 10
    assert meter.read()["network_receive_bytes_per_second"] == received
