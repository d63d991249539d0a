"""The resources that a pod may still use: its limits if they are lower than the machine's resources."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from mptraining_api.launch import EPHEMERAL_STORAGE
from mptraining_trainer.host import available_disk, available_memory

# Less than any machine that runs these tests has left.
LIMIT = 1 << 20


def cgroup(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")
    return folder


def machine() -> float:
    """The machine's resources; they change while other processes run."""
    return pytest.approx(psutil.virtual_memory().available, rel=0.2)  # type: ignore[no-any-return]


class Test_memory:
    def test_is_what_the_limit_leaves(self, tmp_path: Path) -> None:
        assert available_memory(cgroup(tmp_path, max=LIMIT, current=300_000)) == LIMIT - 300_000

    def test_counts_what_the_kernel_keeps_of_files_as_free(self, tmp_path: Path) -> None:
        stat = "anon 100000\nfile 250000\ninactive_file 150000\nactive_file 50000\nshmem 50000"
        assert available_memory(cgroup(tmp_path, max=LIMIT, current=300_000, stat=stat)) == LIMIT - 100_000

    @pytest.mark.parametrize("stat", ["", "not a number of lines", "inactive_file"])
    def test_takes_all_as_used_where_the_kernel_says_less(self, tmp_path: Path, stat: str) -> None:
        assert available_memory(cgroup(tmp_path, max=LIMIT, current=300_000, stat=stat)) == LIMIT - 300_000

    def test_is_never_less_than_none(self, tmp_path: Path) -> None:
        assert available_memory(cgroup(tmp_path, max=LIMIT, current=LIMIT + 5000)) == 0

    def test_is_the_machine_s_without_a_limit(self, tmp_path: Path) -> None:
        assert available_memory(tmp_path) == machine()
        assert available_memory(cgroup(tmp_path, max="max", current=300_000)) == machine()

    def test_is_the_machine_s_where_the_limit_is_higher(self, tmp_path: Path) -> None:
        assert available_memory(cgroup(tmp_path, max=1 << 60, current=0)) == machine()


class Test_disk:
    def test_is_what_the_disk_has(self, tmp_path: Path) -> None:
        free = pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
        assert available_disk(tmp_path, {}) == free
        assert available_disk(tmp_path, {EPHEMERAL_STORAGE: str(1 << 60)}) == free

    def test_is_the_pod_s_limit_where_that_is_lower(self, tmp_path: Path) -> None:
        assert available_disk(tmp_path, {EPHEMERAL_STORAGE: str(LIMIT)}) == LIMIT
