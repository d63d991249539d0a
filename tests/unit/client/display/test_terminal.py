"""The terminal: lines that scroll, and a bar that moves."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from mptraining.display.terminal import TerminalDisplay, bar
from mptraining_api.events import Event, Finished, Notice, Progress, Saved, Started

COMMON: dict[str, Any] = {"time": 0.0, "attempt": 1, "incarnation": "x", "worker": 0}
BEGIN = Started(
    strategy="None", precision="float32", keras="Keras3", tensorflow="2", devices=(), workers=1, replicas_in_sync=1,
    **COMMON,
)  # fmt: skip


def step(number: int, epoch: int = 1, total: int = 9, **metrics: float) -> Progress:
    return Progress(step=number, total_steps=total, epoch=epoch, metrics=metrics, **COMMON)


def terminal() -> tuple[TerminalDisplay, io.StringIO]:
    file = io.StringIO()
    return TerminalDisplay(Console(file=file, width=80, force_terminal=True, color_system=None)), file


def drawn(event: Progress, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(bar(event))
    return capture.get().splitlines()


def test_the_bar_is_two_lines_at_any_width() -> None:
    event = step(50, 2, 200, loss=0.5).model_copy(update={"examples_per_second": 1234.0})
    first, second = drawn(event)
    assert first.startswith("step 50/200  epoch 2")
    assert first.rstrip().endswith("25%")
    assert second.split() == ["loss", "0.5", "1,234", "examples/s"]
    assert len(drawn(event, width=30)) == 2
    metrics = {"loss": 0.5, "accuracy": 0.25, "val_loss": 0.75}
    more = {"metrics": metrics, "step_seconds": 0.1, "estimated_remaining_seconds": 121.0}
    first, _ = drawn(event.model_copy(update=more), width=60)
    assert first.rstrip().endswith("2 min 1 s left  25%"), "the time left is whole"


def test_lines_are_kept_above_the_bar_and_markup_is_no_markup() -> None:
    display, file = terminal()
    display.event(0, step(1, loss=1.0))
    display.line(0, "stdout", "list[int] [bold]")
    display.event(0, Notice(topic="X", message="take [care]", level="Warning", **COMMON))
    display.event(0, step(2, val_loss=1.0))
    display.close()
    display.say("done")
    for line in ("list[int] [bold]", "warning: take [care]", "step 2/9  epoch 1  val_loss 1", "done"):
        assert f"{line}\n" in file.getvalue()


def test_the_progress_of_the_index_is_replaced_and_removed() -> None:
    display, file = terminal()
    for done in (1, 2):
        message = f"indexing the records: {done}.00 of 5.00 GB, 32 s left"
        display.event(0, Notice(topic="Indexing", message=message, **COMMON))
    display.event(0, Notice(topic="Index", message="2 compressed files were expanded", **COMMON))
    display.event(0, BEGIN)
    display.close()
    text = file.getvalue()
    assert "indexing the records: 1.00 of 5.00 GB, 32 s left" in text
    assert "\x1b[2K" in text.partition("2.00 of 5.00 GB, 32 s left")[2], "the line is removed"
    assert text.count("2.00 of 5.00 GB") == 1
    permanent = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", text)
    assert "note: 2 compressed files were expanded\n" in permanent
    assert "training starts: 1 replica; float32; Keras3, TensorFlow 2\n" in permanent


def shown(*events: Event) -> list[str]:
    """Return the lines that stay on the terminal after these events."""
    display, file = terminal()
    display.waiting("starting TensorFlow…")
    for event in events:
        display.event(0, event)
    display.close()
    # What a redrawn line leaves begins after the last "erase line".
    lines = (
        line.rpartition("\x1b[2K")[2] for line in re.sub(r"\x1b\[\?25[lh]|\x1b\[1A", "", file.getvalue()).split("\n")
    )
    return [line.strip() for line in lines if line.startswith(("step", "note", "saved", "⠋ starting"))]


def test_an_epoch_leaves_one_line_and_a_checkpoint_none() -> None:
    resumed = Notice(topic="Resumed", message="resuming from the checkpoint of step 2", **COMMON)
    saved = Saved(step=3, uri="x", bytes=1, seconds=0.1, **COMMON)
    end = Finished(reason="Succeeded", exit_code=0, message="", **COMMON)
    # The events after a validation repeat its metrics.
    second = (step(4, 2, loss=1.5, val_loss=1.0), step(5, 2, loss=1.0))
    with_validation = shown(resumed, step(2, loss=2.0), step(3, val_loss=1.0), saved, *second, end)
    permanent = [line for line in with_validation if "━" not in line and "╸" not in line and "╺" not in line]
    assert permanent == ["step 3/9  epoch 1  val_loss 1", "step 5/9  epoch 2  loss 1"]
