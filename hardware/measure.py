"""One turn, measured by its processes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hardware.cells import Turn
from hardware.data import pattern
from hardware.jobs import steps
from hardware.results import Outcome, Results, Round
from hardware.schedule import limit

ROOT = Path(__file__).resolve().parents[1]
_LOG = "worker.log"
_LAST = 400
# Messages of TensorFlow's allocators, of XLA and of the trainer.
_MEMORY = (
    "out of memory",
    "out_of_memory",
    "oom when allocating",
    "resource_exhausted",
    "resourceexhausted",
    "alloc_failed",
    "bad_alloc",
)


class ChildFailed(Exception):
    """The process of a measurement ended with an error; its message is that of the trainer, or its last output."""


def measure(turn: Turn, results: Results, folder: Path, worker: Worker) -> Round:
    """Measure the cell; whatever its processes do becomes a round."""
    began = time.monotonic()
    outcome: Outcome = "measured"
    message, values = "", dict[str, Any]()
    try:
        values = _measure(turn, results, folder, worker, began + limit(turn.cell, results))
        values["load"] = os.getloadavg()[0]
    except ChildFailed as error:
        message = str(error)
        outcome = "out of memory" if ran_out_of_memory(message) else "failed"
    return Round(turn.cell.key, turn.round, outcome, round(time.monotonic() - began, 2), message, values)


def ran_out_of_memory(message: str) -> bool:
    """Return whether the message is one of a device or a process that ran out of memory."""
    return message.startswith("memory: ") or any(words in message.lower() for words in _MEMORY)


class Worker:
    """The process that measures, one at a time: a second one would find the device's memory taken."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        # What the measurements of the running process have in common.
        self._shared: str | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def ask(
        self, request: dict[str, Any], folder: Path, until: float, *, shared: str | None = None, keep: bool = False
    ) -> dict[str, Any]:
        """Return the answer to the request. The run folder stays for the next one if `keep`.

        Requests with the same `shared` are answered by one process, those with None by one of their own each. One
        that fails in a process that answered others before is retried in a new one: they may have left less memory.
        """
        output = folder / "run"
        reused = self._process is not None and shared is not None and self._shared == shared
        if not reused:
            self.close()
            self._process, self._shared = _start(folder), shared
        done = False
        try:
            values = self._answer({**request, "output": str(output)}, folder, until)
            done = True
        except ChildFailed:
            if not reused or time.monotonic() >= until:
                raise
        finally:
            if shared is None or not done:
                self.close()
            if not (keep and done):
                shutil.rmtree(output, ignore_errors=True)
        return values if done else self.ask(request, folder, until, shared=shared, keep=keep)

    def _answer(self, request: dict[str, Any], folder: Path, until: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that has ended since its last answer does not read.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], max(1.0, until - time.monotonic()))[0]:
            raise ChildFailed("it took several times longer than expected and was ended")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            if code == -signal.SIGKILL:
                raise ChildFailed("out of memory: the kernel ended the process with SIGKILL")
            output = (folder / _LOG).read_text(encoding="utf-8", errors="replace")
            raise ChildFailed(f"exit code {code}: {output[-_LAST:].strip()}")
        values: dict[str, Any] = json.loads(line)
        if "failed" in values:
            raise ChildFailed(values["failed"])
        return values


def _start(folder: Path) -> subprocess.Popen[str]:
    """Start a process that waits for requests; its messages are in a file of the folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Variables of a surrounding job would be taken for this one's, and the last one switches TF32 off.
    outer = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MPTRAINING_") and name != "NVIDIA_TF32_OVERRIDE"
    }
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "hardware.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            cwd=ROOT,
            env={**outer, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"},
            start_new_session=True,
        )


def _measure(turn: Turn, results: Results, folder: Path, worker: Worker, until: float) -> dict[str, Any]:
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
        ours = worker.ask(request, folder, until)
        keras = worker.ask({**request, "contender": "keras"}, folder, until)
        return {**ours, "keras_skipped_steps": keras["skipped_steps"], "keras_loss_scale": keras["loss_scale"]}
    if cell.section == "resume":
        whole = steps(cell, scale)
        straight = worker.ask({**request, "steps": whole}, folder, until)
        worker.ask({**request, "steps": whole // 2}, folder, until, keep=True)
        resumed = worker.ask({**request, "steps": whole}, folder, until)
        return {**resumed, "half": whole // 2, "straight_weights": straight["weights"]}
    # A TPU's process initializes it once; the algorithms that a GPU's process has chosen are those of its TF32 setting.
    shared = None
    if cell.shares_process and results.machine.kind != "tpu":
        shared = "without TF32" if cell.policy == "float32" else "with TF32"
    return worker.ask(request, folder, until, shared=shared)
