"""The table of outcomes in docs/keras-io.md, between two markers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.soak.keras_io import outcomes
from tests.soak.keras_io.outcomes import Kind, Outcome
from tests.soak.keras_io.runs import Run
from tests.soak.keras_io.variants import FUNCTIONS, PLAIN, SAMPLE, SCRIPTS, Variant

BEGIN, END = "<!-- keras.io: made by `make soak` -->", "<!-- end of keras.io -->"
_SHORT = {"float32": "f32", "mixed_bfloat16": "b16", "mixed_float16": "f16"}
_COLUMNS = (PLAIN, *SCRIPTS, SAMPLE, *FUNCTIONS)
_LONGEST = 400

Runs = Mapping[tuple[str, str], Run]


def document(runs: Runs) -> str:
    """Return the counts, one row for each script, and the reasons of every cell that is not a bare ok."""
    names = sorted({script for script, _ in runs})
    cells = {key: outcomes.of(run, runs) for key, run in runs.items()}
    notes: dict[str, int] = {}
    rows = [_row(name, runs, cells, notes) for name in names]
    header = [_heading(each) for each in _COLUMNS]
    own = sum(any(fit["own_train_step"] for fit in _plain_fits(name, runs)) for name in names)
    lines = [
        f"{len(names)} programs, {own} of them with a `train_step`, `test_step` or `compute_loss` of their own.",
        "",
        "| | " + " | ".join(kind.value for kind in Kind if kind is not Kind.NONE) + " |",
        "|---" * 5 + "|",
        *(_count(kind, runs, cells) for kind in ("plain", "script", "function")),
        "",
        "| program | " + " | ".join(header) + " |",
        "|---" * (len(header) + 1) + "|",
        *rows,
    ]
    if notes:
        lines += ["", *(f"{number}. {_quoted(text)}" for text, number in notes.items())]
    return "\n".join(lines)


def _heading(variant: Variant) -> str:
    if variant == PLAIN:
        return "plain"
    kind = "" if variant.kind == "script" else "fn "
    return f"{kind}{variant.devices} {_SHORT[variant.policy]}"


def _row(name: str, runs: Runs, cells: Mapping[tuple[str, str], Outcome], notes: dict[str, int]) -> str:
    found = []
    for variant in _COLUMNS:
        key = name, str(variant)
        found.append(_cell(cells[key], runs[key], notes) if key in cells else "")
    fits = _plain_fits(name, runs)
    marks = " †" if any(fit["own_train_step"] for fit in fits) else ""
    return f"| {name}{marks} | " + " | ".join(found) + " |"


def _cell(outcome: Outcome, run: Run, notes: dict[str, int]) -> str:
    texts = [outcome.note] if outcome.note else []
    if run.followed and outcome.kind is Kind.OK:
        texts.append("with " + outcomes.without_folders(run.followed))
    numbers = [notes.setdefault(_shortened(text), len(notes) + 1) for text in texts]
    return outcome.kind.value + "".join(f" [{each}]" for each in numbers)


def _count(kind: str, runs: Runs, cells: Mapping[tuple[str, str], Outcome]) -> str:
    shown = {str(each) for each in _COLUMNS if each.kind == kind}
    counted = Counter(cells[key].kind for key in runs if key[1] in shown)
    return f"| {kind} | " + " | ".join(str(counted[each]) for each in Kind if each is not Kind.NONE) + " |"


def _plain_fits(name: str, runs: Runs) -> Iterable[dict[str, object]]:
    plain = runs.get((name, str(PLAIN)))
    return plain.fits if plain else ()


def _shortened(text: str) -> str:
    """Return its beginning, which has the error, and its end, which has the advice."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _quoted(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
