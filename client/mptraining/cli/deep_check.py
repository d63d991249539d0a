"""Report of `mptj check --deep FILE` on the model's layers, memory and batch size; the trainer builds the model.

Nothing is trained and no accelerator is needed: the model of a job for eight GPUs can be inspected on a laptop.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mptraining.display.text import is_noise, size
from mptraining.job_file.paths import source_folder, with_absolute_paths
from mptraining_api import events, run_folder
from mptraining_api.launch import DEBUG, JOB_FILE, SOURCE_FOLDER
from mptraining_api.model_report import BATCH_MULTIPLE, ROOM, LayerReport, Memory, ModelFacts, Report, report
from mptraining_api.problems import InvalidProgram, Problem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob

INSPECTOR = (sys.executable, "-m", "mptraining_trainer", "inspect")
_MOST_NAMES = 4
# Larger batches have no benefit; the report shows "over 65,536" instead of the exact number.
_LARGEST = 65_536


def deep_check(path: str, *, say: Callable[[str], None], command: Sequence[str] = INSPECTOR) -> Report:
    """Build the model of the job at `path` in the trainer, as the cluster would train it, and return the report.

    `say` gets notices and errors of the trainer, `command` starts it. Raises the Problem that the trainer reports, and
    InvalidProgram if TensorFlow is not installed.
    """
    if tuple(command) == INSPECTOR and importlib.util.find_spec("tensorflow") is None:
        step = "Install it with: pip install 'mptraining[trainer-cpu]'"
        raise InvalidProgram("--deep", "TensorFlow is not installed here", next_step=step)
    folder = Path(path).absolute().parent
    with tempfile.TemporaryDirectory(prefix="mptj-") as temporary:
        absolute_job = with_absolute_paths(
            MPTrainingJob.load(Path(path)), folder=folder, output=str(Path(temporary) / "run")
        )
        job = resolve(absolute_job, ClusterSettings())
        job_file = Path(temporary) / run_folder.JOB
        job_file.write_text(job.to_json(), encoding="utf-8")
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            JOB_FILE: str(job_file),
            SOURCE_FOLDER: str(source_folder(job, folder)),
        }
        return report(_run_inspector(command, environment, say), job)


def _run_inspector(command: Sequence[str], environment: dict[str, str], say: Callable[[str], None]) -> ModelFacts:
    ended = subprocess.run(  # noqa: S603 - the trainer's command, no shell
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    facts, finished = None, None
    for line in ended.stdout.splitlines():
        match events.parse(line):
            case events.Inspected() as event:
                facts = event.model
            case events.Notice() as event:
                say(f"{'warning' if event.level == 'Warning' else 'note'}: {event.message}")
            case events.Finished() as event:
                finished = event
    if facts is not None and ended.returncode == 0:
        return facts
    debug = bool(environment.get(DEBUG))
    for line in ended.stderr.splitlines():
        if debug or (finished is None and not is_noise("stderr", line, needs_gpu=False)):
            say(line)
    if finished is not None and finished.message:
        kinds = {kind.reason: kind for kind in Problem.__subclasses__()}
        raise kinds.get(finished.reason, Problem)("", finished.message)
    raise Problem(
        "--deep", f"the trainer ended with exit code {ended.returncode} and without a report", next_step="Try --debug."
    )


def show(found: Report, console: Console) -> None:
    """Print the report: layers, memory, findings, advice."""
    trained = "" if found.trainable == found.parameters else f", {found.trainable:,} of them trained"
    console.print()
    head = f"{found.model} under {found.policy}: {found.parameters:,} parameters{trained}"
    console.print(Text(head, style="bold"))
    console.print(_layers(found))
    console.print()
    console.print(_memories(found))
    for name, text in findings(found):
        console.print(Text.assemble((f"{name}: ", "bold"), text))
    for each in advice(found):
        console.print(Text(f"advice: {each}", style="yellow"))


def findings(found: Report) -> list[tuple[str, str]]:
    """Return (name, text) lines that summarize the table of layers."""
    mixed = found.policy.startswith("mixed_")
    lines = []
    if mixed:
        lines.append(("kept in float32", _first_names(found.kept_float32) or "no layer"))
    lines.append(("softmax below float32", _first_names(found.softmax_not_float32) or "none"))
    lines.append(("output below float32", _first_names(found.output_not_float32) or "no, as it should be"))
    if found.multiple > 1:
        missing = [row.name for row in found.layers if row.padding]
        cost = f"; the model multiplies {found.padding_cost:.1%} more" if missing else ""
        lines.append((f"widths that miss a multiple of {found.multiple}", f"{_first_names(missing) or 'none'}{cost}"))
    if found.uncounted:
        lines.append(
            ("not counted in memory", f"what is kept for each step of the loops in {_first_names(found.uncounted)}")
        )
    return lines


def advice(found: Report) -> list[str]:
    """Return suggested changes, the most important first."""
    found_advice = []
    if found.output_not_float32:
        found_advice.append(
            f"End the model in float32, where losses neither overflow nor round: give {found.output_not_float32[0]} "
            "dtype='float32', or add layers.Activation('linear', dtype='float32')."
        )
    softmax = [each for each in found.softmax_not_float32 if each not in found.output_not_float32]
    if softmax:
        found_advice.append(
            f"Give the softmax of {_first_names(softmax)} dtype='float32': sums of many small numbers round."
        )
    if found.padding_cost >= 0.01:
        worst = max(found.layers, key=lambda row: row.padding_cost * row.multiply_adds)
        found_advice.append(f"Widen {worst.name} ({worst.padding}): what is padded is computed and thrown away.")
    by_policy = {each.policy: each for each in found.memory}
    plain, other = by_policy.get("float32"), found.memory[-1]
    if plain is not None and other is not plain and plain.batch_size is not None and other.batch_size is not None:
        found_advice += _batch_advice(found, plain.batch_size, other.batch_size, other.policy)
    return found_advice


def _batch_advice(found: Report, plain: int, mixed: int, policy: str) -> list[str]:
    size = found.batch_size
    if mixed < 1:
        return [f"Not even one example fits on {found.device} beside the weights: take a larger device."]
    if size is not None and size > mixed:
        fewer = f"gradientAccumulationSteps: {-(-size // mixed)} with a smaller batch"
        return [f"{size} examples per replica will hardly fit on {found.device}: at most {_batch(mixed)}. Try {fewer}."]
    if min(mixed, _LARGEST) <= plain or size is None:
        return []
    text = f"{policy} leaves room for {_batch(mixed)} examples per replica, float32 for {_batch(plain)}."
    if size * 2 <= mixed:
        text += (
            f" The job takes {size}; with more, learningRateScaling adapts the learning rate: Linear for SGD, "
            "SquareRoot for Adam, with warmupSteps."
        )
    return [text]


def _layers(found: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in ("layer", "kind", "compute", "variables"):
        table.add_column(name, overflow="fold")
    for name in ("output", "parameters", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    if found.multiple > 1:
        table.add_column(f"padded to {found.multiple}", overflow="fold")
    mixed = found.policy.startswith("mixed_")
    for row in found.layers:
        style = "green" if mixed and row.compute == "float32" else ""
        shape = "x".join("?" if one is None else str(one) for one in row.output_shape) or "1"
        numbers = [f"{row.parameters:,}" if row.parameters else "", _bytes(row.output_bytes)]
        numbers += [_padding(row)] if found.multiple > 1 else []
        table.add_row(row.name, row.kind, Text(row.compute, style=style), row.variables or "", shape, *numbers)
    return table


def _padding(row: LayerReport) -> str:
    return f"{row.padding}: +{row.padding_cost:.0%}" if row.padding else ""


def _memories(found: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("memory of a replica")
    for each in found.memory:
        table.add_column(each.policy, justify="right")
    at = found.batch_size

    def row(name: str, value: Callable[[Memory], str]) -> None:
        table.add_row(name, *(value(each) for each in found.memory))

    row("weights", lambda each: _bytes(each.weights))
    row("optimizer's slots", lambda each: _bytes(each.slots))
    row("gradients", lambda each: _bytes(each.gradients))
    row("copies in the compute dtype", lambda each: _bytes(each.copies))
    row("an example's activations", lambda each: _bytes(each.activations_per_example))
    row("an example's gradients of them", lambda each: _bytes(each.working_per_example))
    if at is not None:
        row(f"all, with the job's {at} examples", lambda each: _bytes(total(each, at)))
    if found.device_bytes is not None:
        room = f"largest batch in {ROOM:.0%} of {found.device_bytes / 2**30:.0f} GiB, by {BATCH_MULTIPLE}s"
        row(room, lambda each: _batch(each.batch_size or 0))
    return table


def total(memory: Memory, examples: int) -> int:
    """Return the memory in bytes of a replica that trains on this many examples per step."""
    fixed = memory.weights + memory.slots + memory.gradients + memory.copies
    return fixed + examples * (memory.activations_per_example + memory.working_per_example)


def _batch(number: int) -> str:
    return f"over {_LARGEST:,}" if number > _LARGEST else f"{number:,}"


def _bytes(number: int | None) -> str:
    return "" if number is None else size(number)


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
