"""The resources that a pod may still use: its limits if they are lower than the machine's resources."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from mptraining_api.launch import EPHEMERAL_STORAGE
from mptraining_trainer.host import Cgroup, available_disk, available_memory, native_bfloat16

# Less than any machine that runs these tests has left.
LIMIT = 1 << 20


def cgroup(folder: Path, **files: object) -> Cgroup:
    """A container under cgroup v2."""
    (folder / "cgroup.controllers").write_text("cpu memory\n")
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")
    return Cgroup(folder, folder / "absent")


def cgroup_v1(folder: Path, path: str = "", *, own: str = "/", root: bool = False, **files: object) -> Cgroup:
    """A container under cgroup v1 with cgroup v2 for systemd alone, or the machine (`root`) with a cgroup at `path`."""
    (folder / "unified").mkdir(exist_ok=True)
    level = folder / "memory" / path
    level.mkdir(parents=True, exist_ok=True)
    if root:
        (folder / "memory" / "release_agent").write_text("")
    for name, content in files.items():
        (level / f"memory.{name}").write_text(f"{content}\n")
    (folder / "own").write_text(f"9:name=systemd:/\n4:memory:{own}\n2:cpu,cpuacct:/\n0::/\n")
    return Cgroup(folder, folder / "own")


def machine() -> float:
    """The machine's resources; they change while other processes run."""
    return pytest.approx(psutil.virtual_memory().available, rel=0.2)  # type: ignore[no-any-return]


class Test_memory:
    @pytest.mark.parametrize(
        ("current", "stat", "available"),
        [
            # The kernel frees what it keeps of files.
            (300_000, "file 250000\ninactive_file 150000\nactive_file 50000\nshmem 50000", LIMIT - 100_000),
            (300_000, "", LIMIT - 300_000),
            (300_000, "inactive_file", LIMIT - 300_000),
            (LIMIT + 5000, "", 0),
        ],
    )
    def test_is_what_the_limit_leaves(self, tmp_path: Path, current: int, stat: str, available: int) -> None:
        assert available_memory(cgroup(tmp_path, max=LIMIT, current=current, stat=stat)) == available

    def test_is_the_machine_s_without_a_limit_or_where_it_is_higher(self, tmp_path: Path) -> None:
        assert available_memory(Cgroup(tmp_path, tmp_path / "absent")) == machine()
        assert available_memory(cgroup(tmp_path, max="max", current=300_000)) == machine()
        assert available_memory(cgroup(tmp_path, max=1 << 60, current=0)) == machine()


class Test_memory_under_cgroup_v1:
    """The kernel writes this number of bytes for no limit."""

    NONE = 9223372036854771712

    @pytest.mark.parametrize("own", ["/kubepods/burstable/pod1/abc", "/", "/../pod1"])
    def test_is_what_the_limit_leaves(self, tmp_path: Path, own: str) -> None:
        stat = "inactive_file 0\nactive_file 0\ntotal_inactive_file 150000\ntotal_active_file 50000"
        found = cgroup_v1(tmp_path, own=own, limit_in_bytes=LIMIT, usage_in_bytes=300_000, stat=stat)
        assert found.in_container
        assert available_memory(found) == LIMIT - 100_000
        assert (found.memory_limit(), found.memory_used()) == (LIMIT, 100_000)

    def test_is_the_machine_s_without_a_limit(self, tmp_path: Path) -> None:
        found = cgroup_v1(tmp_path, limit_in_bytes=self.NONE, usage_in_bytes=300_000)
        assert available_memory(found) == machine()

    def test_of_a_process_of_the_machine_is_that_of_its_cgroup_or_of_one_above_it(self, tmp_path: Path) -> None:
        cgroup_v1(tmp_path, root=True, limit_in_bytes=self.NONE, usage_in_bytes=1 << 40)
        cgroup_v1(tmp_path, "user", limit_in_bytes=LIMIT, usage_in_bytes=300_000)
        found = cgroup_v1(tmp_path, "user/me", own="/user/me", limit_in_bytes=self.NONE, usage_in_bytes=200_000)
        assert not found.in_container
        assert found.memory_used() is None
        assert available_memory(found) == LIMIT - 300_000


@pytest.mark.parametrize("version", [1, 2])
def test_the_processes_that_the_kernel_killed_for_memory_are_counted(tmp_path: Path, version: int) -> None:
    if version == 1:
        found = cgroup_v1(tmp_path, usage_in_bytes=1, oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3")
    else:
        found = cgroup(tmp_path, current=1, events="low 0\nhigh 0\nmax 12\noom 3\noom_kill 3\noom_group_kill 0")
    assert found.oom_kills() == 3
    assert Cgroup(tmp_path / "absent").oom_kills() == 0


@pytest.mark.parametrize(
    ("quota", "period", "cpus"), [("50000", "100000", 0.5), ("-1", "100000", None), ("", "", None), ("1", "0", None)]
)
def test_the_cpus_under_cgroup_v1(tmp_path: Path, quota: str, period: str, cpus: float | None) -> None:
    found = cgroup_v1(tmp_path, usage_in_bytes=1)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpuacct").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")
    (tmp_path / "cpuacct" / "cpuacct.usage").write_text("2500000000\n")
    assert (found.cpus(), found.cpu_seconds(), found.disk_bytes()) == (cpus, 2.5, None)


def test_disk_is_what_the_disk_has_or_the_pod_s_limit_where_that_is_lower(tmp_path: Path) -> None:
    free = pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert available_disk(tmp_path, {}) == free
    assert available_disk(tmp_path, {EPHEMERAL_STORAGE: str(1 << 60)}) == free
    assert available_disk(tmp_path, {EPHEMERAL_STORAGE: str(LIMIT)}) == LIMIT


@pytest.mark.parametrize(
    ("flags", "native"), [("fpu avx512f", False), ("fpu avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True)]
)
def test_native_bfloat16_is_read_from_the_flags_of_the_cpu(tmp_path: Path, flags: str, native: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    assert native_bfloat16(tmp_path / "cpuinfo") is native
    assert native_bfloat16(tmp_path / "missing") is False
