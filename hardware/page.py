"""docs/hardware.md and its pictures from the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hardware.cells import COUNTS, HEADLINE, MEMORY_BATCHES, MODELS, POLICIES, SIZES, SOURCES, Cell, Source
from hardware.goals import SCALING, goals, headline, largest_batch, one
from hardware.pictures import bar_chart, line_chart
from hardware.results import AGREE, Results
from hardware.schedule import too_large

_CPU = "Measured on a CPU: shows that the program works, not what a GPU does."
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
            f"Peak memory of {HEADLINE}", "examples of a step on one device", "MiB", lines, POLICIES
        )
    groups: dict[str, dict[str, float]] = {}
    for cell in _cells(results, "policies"):
        if not cell.xla or cell.source != "synthetic":
            continue
        plain = Cell("policies", cell.model, "float32", cell.batch, xla=True)
        ratio = results.ratio(cell, plain)
        if ratio is not None:
            groups.setdefault(cell.model, {})[cell.policy] = ratio
    if groups:
        title = "Examples per second with XLA, as multiples of float32"
        drawn[_SPEED] = bar_chart(title, "", groups, POLICIES)
    return drawn


def _head(results: Results) -> str:
    machine = results.machine
    first = _CPU if machine.kind == "cpu" else f"Measured on {machine.count} x {machine.device}."
    if machine.kind != "cpu" and results.scale == "small":
        first += " The models are small ones, which show that the program works."
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
            plain = next(cell for cell in cells if cell is not None and cell.policy == "float32")
            row = [f"{model}, batch {plain.batch}", "on" if xla else "off"]
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
    before = too_large(cell, results)
    if before is not None:
        return f"out of memory at batch {before.key.rpartition('x')[2]}"
    return "no time left"


def _scaling(results: Results) -> str:
    single = one(results, "scaling", devices=1)
    assert single is not None
    rows = []
    for count in COUNTS:
        cell = one(results, "scaling", devices=count)
        assert cell is not None
        speed, ratio = results.median(cell, "examples_per_second"), results.comparison(cell, single)
        goal = f"{SCALING[count]}" if count in SCALING else ""
        rows.append(
            [
                str(count),
                _absent(results, cell) if speed is None else _number(speed),
                "" if ratio is None else str(ratio),
                goal,
            ]
        )
    devices = {"cpu": "logical devices of one CPU, which share its cores", "gpu": "GPUs (NCCL)", "tpu": "chips"}
    of = devices[results.machine.kind]
    text = f"{HEADLINE} under {single.policy}, {single.batch} examples a step on each of the {of}." + _elsewhere(
        results, single
    )
    return f"## Several devices\n\n{text}\n\n" + _table(["Devices", "Examples/s", "Against one", "Goal"], rows)


def _elsewhere(results: Results, cell: Cell) -> str:
    """Return a remark if the same job of other sections had another speed, else nothing."""
    job = cell.key.partition("/")[2]
    found: dict[str, list[float]] = {}
    for measured in results.rounds:
        section, _, its = measured.key.partition("/")
        if its == job and measured.values.get("examples_per_second"):
            found.setdefault(section, []).append(measured.values["examples_per_second"])
    speeds = [speed for section in found.values() for speed in section]
    if cell.section not in found or max(speeds) <= AGREE * min(speeds):
        return ""
    others = [speed for section, its in found.items() if section != cell.section for speed in its]
    if not others:
        return ""
    between = " to ".join(dict.fromkeys(_number(speed) for speed in (min(others), max(others))))
    return (
        f" The job on one device had {between} examples per second in other sections: the machine was not equally "
        "busy, so figures of two sections, and of two rows here, are not comparable."
    )


def _distinct(hosts: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [dict(one) for one in dict.fromkeys(tuple((name, host[name]) for name in names) for host in hosts)]


def _memory(results: Results, drawn: bool) -> str:
    cells = _cells(results, "memory")
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    rows = []
    for batch in MEMORY_BATCHES[results.scale]:
        row = [str(batch)]
        for policy in policies:
            cell = next(cell for cell in cells if (cell.batch, cell.policy) == (batch, policy))
            memory = results.median(cell, "memory_bytes")
            row.append(_absent(results, cell) if memory is None else f"{memory / _MIB:,.0f}")
        rows.append(row)
    of = "the process, TensorFlow included" if results.machine.kind != "gpu" else "GPU 0, as its allocator reports it"
    text = f"MiB at the peak, of {of}; {HEADLINE} without XLA."
    for policy in policies:
        largest, full = largest_batch(results, policy)
        if full and largest is not None:
            text += f" Under {policy} {largest} is the largest batch that fits."
    picture = f"\n\n![Memory against batch size](pictures/{_MEMORY})" if drawn else ""
    return f"## Memory against batch size\n\n{text}\n\n" + _table(["Batch", *policies], rows) + picture


def _determinism(results: Results) -> str:
    rows = []
    plain = one(results, "determinism", deterministic=False)
    assert plain is not None
    for on in (False, True):
        cell = one(results, "determinism", deterministic=on)
        assert cell is not None
        weights = [found.values["weights"] for found in results.measured(cell)]
        equal = "" if len(weights) < 2 else ("yes" if len(set(weights)) == 1 else "no")
        rows.append(["`Always`" if on else "`Never`", _speed(results, cell, plain), equal])
    header = ["`training.deterministic`", "Examples/s", "Two runs have equal weights"]
    return f"## Determinism\n\n{HEADLINE} under {plain.policy} without XLA.\n\n" + _table(header, rows)


def _failures(results: Results) -> str:
    failed = [found for found in results.rounds if found.outcome != "measured"]
    if not failed:
        return ""
    rows = [[f"`{found.key}`", found.outcome, " ".join(found.message.replace("|", "/").split())] for found in failed]
    return "## What failed\n\n" + _table(["Measurement", "", "Message"], rows)


def _method(results: Results) -> str:
    kinds = {
        "full": "resnet50 and efficientnetb0 are those of keras.applications, vit is a ViT-S/16, transformer an "
        "encoder of 12 layers of width 512 over 256 tokens, mlp has 4 layers of 4,096 units.",
        "small": "The models are small ones with the layers of the named: a residual net, a net of one MBConv block, "
        "encoders of one layer, two dense layers.",
    }
    rounds = max((len(results.measured(headline(results, policy))) for policy in POLICIES), default=0)
    examples = SIZES[results.scale][HEADLINE].examples
    return (
        "## How it is measured\n\n"
        "Each measurement is a job of its own in a process of its own, resolved and run as `mptj run` does it, with "
        "the strategy, the policy and the loss scaling that a job gets. Records hold noise. A speed is the median over "
        "the calls of the device but the first, which compiles; with several rounds the median of the rounds. A ratio "
        f"is that of the two medians, unless the ratios of single rounds differ by more than {AGREE - 1:.0%}: then it "
        f"is the range of the rounds. Rounds of each of the goals' models here: {rounds}. "
        f"{kinds[results.scale]} {examples:,} images are in the data. "
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
