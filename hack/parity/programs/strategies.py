"""Programs that Hypothesis draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from hack.parity.programs import program as choices
from hack.parity.programs.program import LOSSES, METRICS, OWN_METRICS, Program, problem

T = TypeVar("T")
_SETTINGS: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


# A program differs in so many choices from each of so many previous ones.
_APART, _COMPARED = 3, 30


def drawn(count: int, number: int) -> list[Program]:
    """Return so many different programs; the same ones for the same seed `number`."""
    programs: dict[str, Program] = {}
    while len(programs) < count:

        @seed(number)
        @settings(max_examples=2 * count, phases=[Phase.generate], derandomize=False, **_SETTINGS)
        @given(_programs())
        def collect(program: Program) -> None:
            # Hypothesis also changes one choice of an example that it drew before: those programs would show the same
            # difference.
            last = list(programs.values())[-_COMPARED:]
            if len(programs) < count and all(_apart(program, other) >= _APART for other in last):
                programs.setdefault(program.key, program)

        collect()
        number += 7919
    return list(programs.values())


def _apart(program: Program, other: Program) -> int:
    fields = (field.name for field in dataclasses.fields(Program) if field.name not in ("rows", "name", "workers"))
    return sum(getattr(program, name) != getattr(other, name) for name in fields)


def _rarely(values: Sequence[T], simple: int) -> st.SearchStrategy[T]:
    """Draw the first value `simple` times as often as each other one."""
    return st.sampled_from([*[values[0]] * simple, *values[1:]])


@st.composite
def _programs(draw: st.DrawFn) -> Program:
    p: dict[str, Any] = {"generation": draw(st.sampled_from(["Keras3", "Legacy"]))}
    p["form"] = draw(st.sampled_from(choices.FORMS))
    p["inputs"] = draw(_rarely(choices.INPUTS, 3))
    if (p["inputs"] == "several" and p["form"] == "sequential") or p["inputs"] == "several_list":
        p["form"] = "functional"
    if p["inputs"] == "fixed":
        p["form"] = "sequential"
    p["override"] = draw(_rarely(choices.OVERRIDES, 18))
    tasks = [task for task in choices.TASKS if task not in ("tokens", "image", "unlabelled")]
    tasks += {"image": ["image"] * 2, "tokens": ["tokens"] * 2, "tokens_lstm": ["tokens"], "sequence": ["tokens"]}.get(
        p["inputs"], []
    )
    if p["inputs"] == "vector" and p["override"] in ("compute_loss", "both_steps"):
        tasks = ["unlabelled", *tasks]
    p["task"] = draw(st.sampled_from(tasks))
    single = p["task"] in ("tokens", "image") or p["override"] not in ("none", "compute_loss_super", "compute_metrics")
    if not single and p["form"] != "sequential":
        kinds = choices.OUTPUTS if p["form"] == "functional" else ("one", "list", "dict")
        p["outputs"] = draw(_rarely(kinds, 3))
    outputs = p.get("outputs", "one")
    p["extras"] = tuple(sorted(draw(st.sets(st.sampled_from(choices.EXTRAS), max_size=2)))) if draw(_one_in(2)) else ()
    if p["generation"] == "Legacy":
        p["extras"] = tuple(extra for extra in p["extras"] if extra not in ("dropout", "dropouts", "float8"))
    p |= draw(_labels(p["task"]))
    p |= draw(_losses(p))
    p["loss_weights"] = outputs != "one" and draw(_one_in(2))
    p |= draw(_weights(p["task"], outputs))
    p |= draw(_metrics(p))
    p |= draw(_optimizers(p["generation"]))
    fixed = p["inputs"] == "fixed"
    p["validation"] = "none" if fixed else draw(st.sampled_from(["none", "none", "each", "each", "each", "second"]))
    p["callbacks"] = draw(_callbacks(p["validation"], p["schedule"]))
    p |= draw(_batches(p))
    p["policy"] = draw(_rarely(choices.POLICIES, 6))
    p["strategy"] = "None" if fixed else draw(st.sampled_from(choices.STRATEGIES))
    p["workers"] = draw(_one_in(25))
    made = Program(**p)
    assume(problem(made) is None)
    return made


def _one_in(number: int) -> st.SearchStrategy[bool]:
    return st.sampled_from([False] * (number - 1) + [True])


@st.composite
def _labels(draw: st.DrawFn, task: str) -> dict[str, Any]:
    dtypes = {
        "regression": ["float32", "float32", "int64", "uint8", "int32"],
        "binary": ["float32", "int64", "uint8", "bool", "int32"],
        "classes": ["int64", "int64", "int32", "uint8", "float32"],
        "tokens": ["int64", "int64", "int32"],
        "image": ["float32", "uint8"],
    }.get(task, ["float32"])
    choice: dict[str, Any] = {"dtype": draw(st.sampled_from(dtypes))}
    if task in ("regression", "binary", "classes"):
        choice["rank"] = draw(st.sampled_from(choices.RANKS))
    if task in ("binary", "classes", "onehot", "tokens"):
        choice["head"] = draw(st.sampled_from(["plain", "logits"]))
    if task in ("regression", "binary") and draw(_one_in(6)):
        choice["head"] = "rank1"
    return choice


@st.composite
def _losses(draw: st.DrawFn, p: dict[str, Any]) -> dict[str, Any]:
    loss = draw(_rarely(LOSSES[p["task"]], 4))
    if p["task"] == "unlabelled":
        return {}
    if p.get("head") == "logits":
        crossentropies = [name for name in LOSSES[p["task"]] if "crossentropy" in name]
        loss, form = draw(st.sampled_from(crossentropies)), "class"
    else:
        form = draw(st.sampled_from(choices.LOSS_FORMS))
        if form not in ("string", "class", "keras_function"):
            # Custom losses are the mean squared error or a crossentropy.
            loss = LOSSES[p["task"]][0]
    choice: dict[str, Any] = {"loss": loss, "loss_form": form}
    if form in ("class", "subclass", "subclass_kwargs") and draw(_one_in(2)):
        legacy = p["generation"] == "Legacy"
        known = [name for name in choices.REDUCTIONS if not legacy or name in ("default", "sum_over_batch_size", "sum")]
        choice["reduction"] = draw(st.sampled_from(known))
    return choice


@st.composite
def _weights(draw: st.DrawFn, task: str, outputs: str) -> dict[str, Any]:
    choice: dict[str, Any] = {}
    if draw(_one_in(4)) and task != "unlabelled":
        choice["sample_weight"] = "token" if task == "tokens" and draw(_one_in(2)) else "example"
    if outputs == "one" and task in ("binary", "classes", "onehot"):
        choice["class_weight"] = "sample_weight" not in choice and draw(_one_in(5))
    return choice


@st.composite
def _metrics(draw: st.DrawFn, p: dict[str, Any]) -> dict[str, Any]:
    if p["task"] == "unlabelled":
        return {}
    known = [name for name in METRICS[p["task"]] if p.get("head") != "rank1" or name != "R2Score"]
    if p["generation"] == "Legacy":
        known = [name for name in known if name != "R2Score"]
    drawn_from = st.sampled_from([*known, *known, *OWN_METRICS])
    metrics = draw(st.lists(drawn_from, max_size=2, unique=True)) if draw(_one_in(2)) else []
    weighted = draw(st.lists(drawn_from, max_size=2, unique=True)) if draw(_one_in(4)) else []
    return {"metrics": tuple(metrics), "weighted_metrics": tuple(name for name in weighted if name not in metrics)}


@st.composite
def _optimizers(draw: st.DrawFn, generation: str) -> dict[str, Any]:
    legacy = generation == "Legacy"
    optimizer = draw(_rarely([name for name in choices.OPTIMIZERS if not legacy or name != "Multi"], 5))
    weight_decay = optimizer != "AdamW" and draw(_one_in(8))
    return {
        "optimizer": optimizer,
        "ema": draw(_rarely(choices.EMAS, 10)),
        "clipping": draw(_rarely(choices.CLIPPINGS, 9)),
        "weight_decay": weight_decay,
        "decay_excludes": (weight_decay or optimizer == "AdamW") and draw(_one_in(2)),
        "loss_scale": not legacy and draw(_one_in(10)),
        "schedule": draw(_rarely(choices.SCHEDULES, 9)),
    }


@st.composite
def _callbacks(draw: st.DrawFn, validation: str, schedule: str) -> tuple[str, ...]:
    if not draw(_one_in(4)):
        return ()
    known = ["observer", "lambda", "csv", "terminate_on_nan", "own_stopper"]
    known += ["batch_rate"] if schedule == "none" else []
    if validation == "each":
        known += ["early_stopping", "checkpoint"]
    if schedule == "none":
        known += ["reduce_rate"] if validation == "each" else ["scheduler"]
    return tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True)))


@st.composite
def _batches(draw: st.DrawFn, p: dict[str, Any]) -> dict[str, Any]:
    batch = draw(st.sampled_from([12, 12, 8, 4]))
    changing = {"batchnorm", "dropout"} & set(p["extras"]) or p["override"] in ("train_step", "both_steps")
    fixed = p["inputs"] == "fixed"
    accumulation = 2 if not changing and not fixed and draw(_one_in(8)) else 1
    unit = batch * accumulation
    full = draw(st.integers(1, 3))
    remainder = "Drop" if fixed else draw(st.sampled_from(choices.REMAINDERS))
    epochs = draw(st.sampled_from([1, 2, 2, 3]))
    rows = full * unit + (draw(st.integers(1, unit - 1)) if remainder == "PadAndMask" else 0)
    return {
        "batch": batch,
        "accumulation": accumulation,
        "remainder": remainder,
        "rows": rows,
        "epochs": epochs,
        "initial_epoch": 1 if epochs > 1 and draw(_one_in(10)) else 0,
        "steps_per_execution": draw(st.sampled_from([1, 4])),
    }
