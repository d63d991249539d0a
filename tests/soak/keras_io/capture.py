"""The data of a script's first `fit`, kept as arrays: the training data of its function program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 64
DATA, FACTS = "data.npz", "data.json"


def keep(arguments: Mapping[str, Any], folder: Path) -> None:
    """Write up to ROWS examples of `fit`'s x, y and sample_weight; if they are no arrays, write the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"batch_size": arguments.get("batch_size")}
    try:
        x, y, weight = _examples(arguments)
        inputs = _input_names(arguments.get("self"))
        names = {"x": _named("x", x, inputs), "y": _named("y", y), "weight": _named("weight", weight)}
        columns = {name: value for part in names.values() for name, value in part.items()}
        facts |= {part: list(found) for part, found in names.items()} | {"structure": _structure(x, y)}
        np.savez(folder / DATA, allow_pickle=False, **columns)
    except (TypeError, ValueError, NotImplementedError) as error:
        facts["refused"] = str(error).splitlines()[0]
    (folder / FACTS).write_text(json.dumps(facts))


def _structure(x: Any, y: Any) -> dict[str, str]:
    return {"x": type(x).__name__, "y": type(y).__name__}


def _input_names(model: Any) -> list[str]:
    """Return the names of a functional model's inputs, which its records have when `fit` is given a list."""
    known = getattr(model, "input_names", None)
    if known is not None:
        return list(known)
    inputs = getattr(model, "inputs", None)
    # Keras 3 names the tensor otherwise than its input layer.
    return [each._keras_history.operation.name for each in inputs] if isinstance(inputs, (list, tuple)) else []


def _named(part: str, value: Any, known: Sequence[str] = ()) -> dict[str, np.ndarray[Any, Any]]:
    """Return columns by name: the part itself, `known` or numbered names for lists, the keys of a dict."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        items = {str(name): each for name, each in value.items()}
    elif isinstance(value, (list, tuple)):
        names = known if len(known) == len(value) else [f"{part}{at}" for at in range(len(value))]
        items = dict(zip(names, value, strict=True))
    else:
        items = {part: value}
    found = {name: np.asarray(each) for name, each in items.items()}
    for name, each in found.items():
        if each.dtype == object and not all(isinstance(one, (bytes, str)) for one in each.ravel()):
            raise TypeError(f"{name} has rows of several lengths")
    return found


def _examples(arguments: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    x, y, weight = arguments["x"], arguments.get("y"), arguments.get("sample_weight")
    if hasattr(x, "element_spec"):
        return _of_batches(iter(x.take(ROWS)), tf)
    if hasattr(x, "__getitem__") and hasattr(x, "__len__") and not hasattr(x, "shape") and y is None:
        if isinstance(x, (list, tuple, dict)):
            return tf.nest.map_structure(lambda each: np.asarray(each)[:ROWS], x), None, None
        return _of_batches((x[at] for at in range(min(len(x), ROWS))), tf)
    if callable(getattr(x, "__next__", None)):
        raise NotImplementedError("a generator")

    def first(each: Any) -> Any:
        return None if each is None else np.asarray(each)[:ROWS]

    if weight is not None and isinstance(weight, (list, tuple, dict)):
        raise NotImplementedError("sample weights of several outputs")
    return tf.nest.map_structure(first, x), None if y is None else tf.nest.map_structure(first, y), first(weight)


def _of_batches(batches: Iterator[Any], tf: Any) -> tuple[Any, Any, Any]:
    rows, parts = 0, []
    for batch in batches:
        parts.append(tf.nest.map_structure(np.asarray, batch))
        rows += len(tf.nest.flatten(parts[-1])[0])
        if rows >= ROWS:
            break
    if not parts:
        raise ValueError("no batch")
    whole = tf.nest.map_structure(lambda *each: np.concatenate(each)[:ROWS], *parts)
    if isinstance(whole, tuple) and len(whole) in (2, 3):
        return whole[0], whole[1], whole[2] if len(whole) == 3 else None
    return whole[0] if isinstance(whole, tuple) and len(whole) == 1 else whole, None, None
