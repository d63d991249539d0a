"""One turn, measured by its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hardware.cells import Turn
from hardware.data import pattern
from hardware.jobs import steps
from hardware.results import Outcome, Results, Round
from hardware.schedule import limit

ROOT = Path(__file__).resolve().parents[1]
_LAST = 400
# Messages of TensorFlow's allocators, of XLA and of the trainer.
_MEMORY = ("out of memory", "oom when allocating", "resource_exhausted", "resourceexhausted", "memory: ")


class ChildFailed(Exception):
    """The process of a measurement ended with an error; its message is that of the trainer, or its last output."""


def measure(turn: Turn, results: Results, folder: Path) -> Round:
    """Measure the cell; whatever its processes do becomes a round."""
    began = time.monotonic()
    outcome: Outcome = "measured"
    message, values = "", dict[str, Any]()
    try:
        values = _measure(turn, results, folder, began + limit(turn.cell, results))
        values["load"] = os.getloadavg()[0]
    except ChildFailed as error:
        message = str(error)
        outcome = "out of memory" if ran_out_of_memory(message) else "failed"
    return Round(turn.cell.key, turn.round, outcome, round(time.monotonic() - began, 2), message, values)


def ran_out_of_memory(message: str) -> bool:
    """Return whether the message is one of a device or a process that ran out of memory."""
    return any(words in message.lower() for words in _MEMORY)


def _measure(turn: Turn, results: Results, folder: Path, until: float) -> dict[str, Any]:
    cell = turn.cell
    # The model that overflows takes the small vectors on every machine.
    scale = "small" if cell.section == "overflow" else results.scale
    request = {
        "machine": results.machine.to_json(),
        "cell": cell.to_json(),
        "contender": "trainer",
        "scale": scale,
        "train": pattern(folder, cell.model, scale, cell.source),
        "steps": None,
    }
    if cell.section == "overflow":
        ours = _child(request, folder, until)
        keras = _child({**request, "contender": "keras"}, folder, until)
        return {**ours, "keras_skipped_steps": keras["skipped_steps"], "keras_loss_scale": keras["loss_scale"]}
    if cell.section == "resume":
        whole = steps(cell, scale)
        straight = _child({**request, "steps": whole}, folder, until)
        _child({**request, "steps": whole // 2}, folder, until, keep=True)
        resumed = _child({**request, "steps": whole}, folder, until)
        return {**resumed, "half": whole // 2, "straight_weights": straight["weights"]}
    return _child(request, folder, until)


def _child(request: dict[str, Any], folder: Path, until: float, *, keep: bool = False) -> dict[str, Any]:
    """Run one process to its end; the run folder stays for the next one if `keep`."""
    output = folder / "run"
    asked = {**request, "output": str(output)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Variables of a surrounding job would be taken for this one's.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MPTRAINING_")}
    environment = {**outer, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hardware.child", json.dumps(asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    seconds = max(1.0, until - time.monotonic())
    try:
        answer, output_text = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ChildFailed("it took several times longer than expected and was ended") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if not keep:
            shutil.rmtree(output, ignore_errors=True)
    values: dict[str, Any] = json.loads(answer) if answer.startswith("{") else {}
    if process.returncode == -signal.SIGKILL:
        raise ChildFailed("out of memory: the kernel ended the process with SIGKILL")
    if process.returncode or "failed" in values:
        raise ChildFailed(values.get("failed") or f"exit code {process.returncode}: {output_text[-_LAST:].strip()}")
    return values
