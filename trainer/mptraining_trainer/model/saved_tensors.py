"""What a step must keep from its forward to its backward pass, read off the traced graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

# Another view of the same memory.
_VIEWS = frozenset({"Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims", "PreventGradient", "Snapshot"})
# Values that a step does not have to keep: the variables themselves, and what is in the program.
_THERE = frozenset({"ReadVariableOp", "Const", "Placeholder", "VarHandleOp", "Shape", "ResourceGather"})


def saved_bytes(graph: Any, forward: Collection[Any], inputs: Sequence[Any], *, batch: int) -> tuple[int, int]:
    """(bytes for each example, bytes once) of the tensors that operations outside `forward` take from it.

    A tensor belongs to the examples when it depends on `inputs` and its size is a multiple of `batch`, a prime that no
    layer's width is a multiple of. Tensors of unknown shape, and what loops stack up, are not counted.
    """
    dependent = _reached(graph, inputs)
    given = {id(each) for each in inputs}
    each_example = once = 0
    for tensor in _saved(graph, forward):
        count = math.prod(tensor.shape) if tensor.shape.is_fully_defined() else 0
        size = count * tensor.dtype.size
        if id(tensor) in given or (tensor.op.name in dependent and count % batch == 0):
            each_example += size // batch
        elif tensor.op.type not in _THERE:
            once += size
    return each_example, once


def _saved(graph: Any, forward: Collection[Any]) -> list[Any]:
    """The tensors of the forward pass that the backward pass takes, each memory once."""
    found: dict[int, Any] = {}
    for operation in graph.get_operations():
        if operation in forward or operation.type == "Shape":
            continue
        for tensor in operation.inputs:
            while tensor.op.type in _VIEWS and tensor.op in forward:
                tensor = tensor.op.inputs[0]  # noqa: PLW2901 - the memory behind the view
            if tensor.op in forward and tensor.dtype.name not in ("resource", "variant"):
                found[id(tensor)] = tensor
    return list(found.values())


def _reached(graph: Any, inputs: Sequence[Any]) -> set[str]:
    """Names of the operations that depend on the inputs."""
    reached = {each.op.name for each in inputs}
    for operation in graph.get_operations():
        if any(tensor.op.name in reached for tensor in operation.inputs):
            reached.add(operation.name)
    return reached
