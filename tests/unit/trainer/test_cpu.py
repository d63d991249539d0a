"""The processor's features, from its own description."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_trainer.host import native_bfloat16


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("fpu avx2 avx512f", False),
        ("fpu avx512f avx512_bf16", True),
        ("amx_bf16 amx_tile", True),
        ("", False),
    ],
)
def test_native_bfloat16_is_read_from_the_cpus_flags(tmp_path: Path, flags: str, native: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    assert native_bfloat16(file) is native


def test_an_unknown_machine_has_no_native_bfloat16(tmp_path: Path) -> None:
    assert native_bfloat16(tmp_path / "missing") is False
