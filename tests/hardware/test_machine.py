"""The machine's devices: a GPU or TPU that TensorFlow does not list is never measured as a CPU."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hardware import __main__ as command
from hardware.machine import DeviceNotListed, _details, check_none, leading_alike
from hardware.measure import ROOT

DEVICES = [
    ("proc/driver/nvidia", "gpu"),
    ("dev/nvidia0", "gpu"),
    ("dev/accel0", "tpu"),
    ("dev/vfio/0", "tpu"),
    ("dev/vfio/vfio", None),
    ("dev/null", None),
]


@pytest.fixture(params=DEVICES, ids=lambda one: one[0])
def machine(request: Any, tmp_path: Path) -> tuple[Path, str | None]:
    """A root folder with a device's file, and the kind of the device."""
    path, kind = request.param
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    return tmp_path, kind


def test_a_device_that_tensorflow_does_not_list_is_an_error_with_the_next_step(
    machine: tuple[Path, str | None],
) -> None:
    root, kind = machine
    if kind is None:
        check_none(root, cuda=False)
        return
    with pytest.raises(DeviceNotListed, match=f"has a {kind.upper()} .*make hardware.*build/hardware-tools/{kind}"):
        check_none(root, cuda=False)
    with pytest.raises(DeviceNotListed, match="nvidia-smi" if kind == "gpu" else "lists none"):
        check_none(root, cuda=True)


def test_make_measures_with_the_tensorflow_of_the_device(machine: tuple[Path, str | None]) -> None:
    """The files of the Makefile and those of hardware/machine.py are the same."""
    root, kind = machine
    asked = ["make", "--dry-run", "--no-print-directory", "hardware", f"DEVICES_UNDER={root}"]
    printed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    environment = f"build/hardware-tools/{kind}" if kind else ".venv"
    assert f"{environment}/bin/python -m hardware " in printed
    assert (f"images/tensorflow-{kind}.lock" in printed) == (kind is not None)


def test_the_message_is_the_only_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(returncode=0, stdout='{"fault": "the machine has a GPU"}\n', stderr="")
    monkeypatch.setattr(command.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(SystemExit, match=r"^the machine has a GPU$"):
        command._machine()


def test_only_gpus_of_one_model_are_measured_together() -> None:
    v100, t4 = ("Tesla V100-SXM2-16GB", 7.0), ("Tesla T4", 7.5)
    assert leading_alike([v100, v100]) == 2
    assert leading_alike([v100, t4, v100]) == 1


def test_a_gpu_whose_capability_tensorflow_does_not_know_lacks_nothing() -> None:
    assert _details({"device_name": "NVIDIA B200", "compute_capability": (10, 0)}) == ("NVIDIA B200", 10.0)
    assert _details({}) == ("GPU", None)
