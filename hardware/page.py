"""docs/hardware.md and its pictures from the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hardware.cells import GOAL_ROUNDS, HEADLINE, MEMORY_BATCHES, MODELS, POLICIES, SIZES, SOURCES, Cell, Source, title
from hardware.goals import LEFT_OUT, SCALING, goals, one, single
from hardware.jobs import steps
from hardware.machine import COUNTS
from hardware.pictures import bar_chart, line_chart
from hardware.results import AGREE, Results
from hardware.schedule import goal_rounds, left_out, memory_limits

_CPU = "Measured on a CPU: shows that the program works, not what a GPU does."
_SMALL = (
    " The models are small ones with the layers of those that an accelerator gets: for images of 16x16 a residual net "
    "(for resnet50), one MBConv block (for efficientnetb0) and an encoder of one layer (for vit), for 16 tokens an "
    "encoder of one layer (for transformer), and two dense layers (for mlp)."
)
_MIB = 2**20
_MEMORY, _SPEED = "hardware-memory.svg", "hardware-speed.svg"
_SOURCES = {
    "synthetic": "Synthetic records: raw tensors that the trainer keeps in memory after the first pass",
    "streamed": "Streamed records: read in every pass, images as JPEG to decode",
}


def write_page(results: Results, file: Path) -> list[Path]:
    """Write the page, and beside it pictures/; return the files written."""
    drawn = pictures(results)
    folder = file.parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        (folder / name).write_text(text, encoding="utf-8")
    file.write_text(page(results, drawn), encoding="utf-8")
    return [file, *(folder / name for name in drawn)]


def page(results: Results, drawn: Iterable[str]) -> str:
    """Return the page in Markdown; `drawn` are the names of the pictures that exist."""
    drawn = set(drawn)
    sections = [
        _head(results),
        _goals(results),
        *(_policies(results, source) for source in SOURCES),
        f"![Examples per second by policy](pictures/{_SPEED})" if _SPEED in drawn else "",
        _scaling(results),
        _memory(results, _MEMORY in drawn),
        _determinism(results),
        _failures(results),
        _left_out(results),
        _method(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def pictures(results: Results) -> dict[str, str]:
    """Return the pictures by file name; there is none without points."""
    drawn = {}
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell in _cells(results, "memory"):
        memory = results.median(cell, "memory_bytes")
        if memory is not None:
            lines.setdefault(cell.policy, []).append((cell.batch, memory / _MIB))
    if lines:
        drawn[_MEMORY] = line_chart(
            f"Peak memory of a {_headline(results)}", "examples of a step on one device", "MiB", lines, POLICIES
        )
    groups: dict[str, dict[str, float]] = {}
    for cell in _cells(results, "policies"):
        if not cell.xla or cell.source != "synthetic":
            continue
        plain = Cell("policies", cell.model, "float32", cell.batch, xla=True)
        ratio = results.ratio(cell, plain)
        if ratio is not None:
            groups.setdefault(title(cell.model, results.scale), {})[cell.policy] = ratio
    if groups:
        drawn[_SPEED] = bar_chart("Examples per second with XLA, as multiples of float32", "", groups, POLICIES)
    return drawn


def _head(results: Results) -> str:
    machine = results.machine
    first = _CPU if machine.kind == "cpu" else f"Measured on {machine.count} x {machine.device}."
    if results.scale == "small":
        first += _SMALL
    accelerator = "none" if machine.kind == "cpu" else f"{machine.count} x {machine.device}"
    if machine.capability:
        accelerator += f", compute capability {machine.capability}"
    hosts = _distinct([one.host for one in results.rounds if one.host] or [machine.to_json()], "cpu", "cores", "memory")
    drivers = [one["driver"] for one in _distinct([one.host for one in results.rounds if one.host], "driver")]
    drivers = [one for one in drivers or [machine.driver] if one]
    rows = [
        ["accelerator", accelerator],
        ["CPU", "; ".join(f"{one['cpu']}, {one['cores']} cores, {one['memory'] / 2**30:.0f} GiB" for one in hosts)],
        ["TensorFlow, Keras", f"{machine.tensorflow}, {machine.keras}"],
        *([["driver", ", ".join(drivers)]] if drivers else []),
        ["date", results.date],
        ["measurements", f"{len(results.rounds)} in {results.seconds / 60:.0f} minutes"],
    ]
    loads = [one.values["load"] for one in results.rounds if "load" in one.values]
    without = len(results.rounds) - len(loads)
    load = [f"{min(loads):.1f} to {max(loads):.1f}"] if loads else []
    load += [f"not recorded in {without} measurements" if loads else "load not recorded"] if without else []
    if load:
        rows.append(["load average while measuring", "; ".join(load)])
    made = "`make hardware` writes this page with the figures of the machine that it runs on."
    return f"# Hardware\n\n{first}\n\n{made}\n\n{_table(['Machine', ''], rows)}"


def _goals(results: Results) -> str:
    rows = [[goal.claim, goal.goal, goal.measured, goal.verdict] for goal in goals(results)]
    return "## Goals\n\n" + _table(["Claim", "Goal", "Measured", ""], rows)


def _policies(results: Results, source: Source) -> str:
    rows = []
    for model in MODELS:
        for xla in (True, False):
            cells = [
                one(results, "policies", model=model, policy=policy, xla=xla, source=source) for policy in POLICIES
            ]
            plain = cells[0]
            if plain is None:
                continue
            row = [f"{title(model, results.scale)}, batch {plain.batch}", "on" if xla else "off"]
            row += ["" if cell is None else _speed(results, cell, plain) for cell in cells]
            bound = results.median(plain, "input_bound_percent")
            rows.append([*row, "" if bound is None else f"{bound:.0f}%"])
    names = [policy.replace("tf32", "TF32") for policy in POLICIES]
    head = "## Policies and XLA\n\nExamples per second, and the ratio to float32 of the same row.\n\n"
    header = ["Model", "XLA", *names, "float32 waits for records"]
    return (head if source == SOURCES[0] else "") + f"### {_SOURCES[source]}\n\n" + _table(header, rows)


def _speed(results: Results, cell: Cell, plain: Cell) -> str:
    speed = results.median(cell, "examples_per_second")
    if speed is None:
        return _absent(results, cell)
    ratio = None if cell == plain else results.comparison(cell, plain)
    return _number(speed) + ("" if ratio is None else f" ({ratio})")


def _absent(results: Results, cell: Cell) -> str:
    """Return why the cell has no figure."""
    if cell.needs:
        return cell.needs
    found = results.of(cell)
    if found:
        return found[-1].outcome
    if cell.section == "memory":
        _, full = memory_limits(results, cell.policy)
        if full is not None and full < cell.batch:
            return f"out of memory at batch {full}"
    return LEFT_OUT


def _scaling(results: Results) -> str:
    machine, alone, rows = results.machine, single(results), []
    assert alone is not None
    for count in COUNTS:
        cell = alone if count == 1 else one(results, "scaling", devices=count)
        assert cell is not None
        speed = results.median(cell, "examples_per_second")
        ratio = None if cell == alone else results.comparison(cell, alone)
        rows.append(
            [
                str(machine.count if machine.kind == "tpu" and cell == alone else count),
                _absent(results, cell) if speed is None else _number(speed),
                "" if ratio is None else str(ratio),
                f"{SCALING[count]}" if count in SCALING else "",
            ]
        )
    of = {"cpu": "logical devices of one CPU, which share its cores", "gpu": "GPUs (NCCL)", "tpu": "chips"}[
        machine.kind
    ]
    xla = "" if alone.xla else " without XLA"
    text = f"{_headline(results)} under {alone.policy}{xla}, {alone.batch} examples a step on each of the {of}."
    return f"## Several devices\n\n{_sentence(text)}\n\n" + _table(
        ["Devices", "Examples/s", "Against one", "Goal"], rows
    )


def _distinct(hosts: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [dict(one) for one in dict.fromkeys(tuple((name, host[name]) for name in names) for host in hosts)]


def _memory(results: Results, drawn: bool) -> str:
    cells = _cells(results, "memory")
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    rows = []
    for batch in sorted({cell.batch for cell in cells}):
        row = [str(batch)]
        for policy in policies:
            cell = next(cell for cell in cells if (cell.batch, cell.policy) == (batch, policy))
            memory = results.median(cell, "memory_bytes")
            between = batch not in MEMORY_BATCHES[results.scale] and not results.of(cell)
            row.append("" if between else (_absent(results, cell) if memory is None else f"{memory / _MIB:,.0f}"))
        if any(row[1:]):
            rows.append(row)
    of = "the process, TensorFlow included" if results.machine.kind != "gpu" else "GPU 0, as its allocator reports it"
    xla = "with" if cells[0].xla else "without"
    text = f"MiB at the peak, of {of}; {_headline(results)} {xla} XLA."
    for policy in policies:
        fits, full = memory_limits(results, policy)
        if fits and full is not None:
            text += f" Under {policy} {fits} fits and {full} does not."
    picture = f"\n\n![Memory against batch size](pictures/{_MEMORY})" if drawn else ""
    return f"## Memory against batch size\n\n{text}\n\n" + _table(["Batch", *policies], rows) + picture


def _determinism(results: Results) -> str:
    rows = []
    repeatable = one(results, "determinism")
    assert repeatable is not None
    fields = {"model": repeatable.model, "policy": repeatable.policy, "xla": repeatable.xla}
    free = one(results, "policies", **fields, source=repeatable.source)
    assert free is not None
    for name, cell in (("`Never`", free), ("`Always`", repeatable)):
        weights = [found.values["weights"] for found in results.measured(cell)]
        equal = "" if len(weights) < 2 else ("yes" if len(set(weights)) == 1 else "no")
        rows.append([name, _speed(results, cell, free), equal])
    header = ["`training.deterministic`", "Examples/s", "All runs have equal weights"]
    xla = "with" if free.xla else "without"
    text = _sentence(f"{_headline(results)} under {free.policy} {xla} XLA.")
    return f"## Determinism\n\n{text}\n\n" + _table(header, rows)


def _failures(results: Results) -> str:
    failed = [found for found in results.rounds if found.outcome != "measured"]
    if not failed:
        return ""
    rows = [
        [f"`{_named(results, found.key)}`", found.outcome, " ".join(found.message.replace("|", "/").split())]
        for found in failed
    ]
    return "## What failed\n\n" + _table(["Measurement", "", "Message"], rows)


def _left_out(results: Results) -> str:
    """Return the measurements for which no time was left, so that nothing that is missing looks measured."""
    found = [f"- `{_named(results, cell.key)}`" for cell in left_out(results)]
    rounds = goal_rounds(results)
    if rounds < GOAL_ROUNDS:
        found.append(f"- {GOAL_ROUNDS - rounds} more rounds of what decides the goals")
    if not found:
        return ""
    jobs = "; `make hardware-gke` has jobs for the speeds only" if results.machine.kind == "tpu" else ""
    text = f"The same command with more `--minutes` (`make hardware MINUTES=…`{jobs}) measures:"
    return f"## {LEFT_OUT.capitalize()}\n\n{text}\n\n" + "\n".join(found)


def _headline(results: Results) -> str:
    return title(HEADLINE, results.scale)


def _named(results: Results, key: str) -> str:
    """Return the cell's key with the model's name of the tables."""
    section, model, rest = key.split("/", 2)
    return "/".join([section, title(model, results.scale) if model in MODELS else model, rest])


def _sentence(text: str) -> str:
    return text if text.startswith(HEADLINE) else f"{text[0].upper()}{text[1:]}"


def _method(results: Results) -> str:
    models = (
        " resnet50 and efficientnetb0 are those of keras.applications, vit is a ViT-S/16, transformer an encoder of 12 "
        "layers of width 512 over 256 tokens, mlp has 4 layers of 4,096 units."
    )
    examples = SIZES[results.scale][HEADLINE].examples
    speeds = {cell.decides_goal: steps(cell, results.scale) for cell in _cells(results, "policies")}
    taken = f"{speeds[False]} steps" + (
        f", one that decides a goal {speeds[True]}" if speeds[True] != speeds[False] else ""
    )
    return (
        "## How it is measured\n\n"
        "Each measurement is a job of its own, resolved and run as `mptj run` does it, with the strategy, the policy "
        "and the loss scaling that a job gets. What decides a goal, compares weights or measures memory has a process "
        "of its own; other speeds with the same TF32 setting share one. Records hold noise. "
        f"A speed takes {taken}; it is the median over the calls of the device but the first, which compiles; with "
        "several rounds the median of the rounds. A ratio is that of the two medians, unless the ratios of single "
        f"rounds differ by more than {AGREE - 1:.0%}: then it is the range of the rounds. "
        f"Rounds of what decides the goals here: {goal_rounds(results)}. "
        "XLA off, TF32 and the third policy are measured for two models, streamed records for two models under float32 "
        "and the goals' policy; other cells of the tables are empty. The largest batch is searched among powers of two "
        "and three batches between two of them, each in a process of its own."
        f"{models if results.scale == 'full' else ''} {examples:,} images are in the data. "
        "TF32 is float32 as "
        "TensorFlow multiplies it on Ampere GPUs by default; the column float32 has it switched off. "
        "The job that overflows has a loss times 4,096 and a learning rate of "
        "0, so that each step has the same gradients, and Keras trains the same model by `fit`. The run in two halves "
        "ends after the first half and is started again to the whole number of steps."
    )


def _cells(results: Results, section: str) -> list[Cell]:
    return list(dict.fromkeys(turn.cell for turn in results.turns() if turn.cell.section == section))


def _number(value: float) -> str:
    """Round to three digits: more is noise."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
