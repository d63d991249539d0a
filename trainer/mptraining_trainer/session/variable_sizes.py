"""Features of variable size on devices and under compilers that need fixed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.data.schema import Column


def allow_xla(
    columns: Sequence[Column], job: ResolvedJob, accumulation: int, notice: Callable[[str, str], None]
) -> bool:
    """Return whether XLA can compile a step over these columns; `notice` gets what their sizes cost.

    Raises InvalidSpec, with the line to write, for a ragged feature where RaggedTensors cannot be used, and on a TPU
    for a size that is not fixed.
    """
    ragged = [column for column in columns if column.ragged]
    cause = (
        "on a TPU"
        if job.accelerator.kind == "tpu"
        else f"on {job.replicas} replicas"
        if job.replicas > 1
        else f"with gradientAccumulationSteps: {accumulation}"
        if accumulation > 1
        else "with jitCompile: Always"
        if job.jit_compile == "Always"
        else None
    )
    if ragged and cause is not None:
        raise InvalidSpec(
            f"spec.data.features[{ragged[0].name}].ragged",
            f"true {cause}",
            expected="one replica without XLA and accumulation",
            next_step=f"Write bucketBoundaries: [{_suggested(ragged[0])}] instead, or neither to pad each batch.",
        )
    unbounded = [column for column in columns if column.is_variable and not column.ragged]
    if job.accelerator.kind == "tpu":
        for column in unbounded:
            if not column.is_fixed_when_padded:
                raise InvalidSpec(
                    f"spec.data.features[{column.name}].bucketBoundaries",
                    f"{list(column.boundaries) or 'missing'} on a TPU",
                    expected="one boundary, so that every batch has the same shape",
                    next_step=f"Write bucketBoundaries: [{_suggested(column)}].",
                )
    elif job.jit_compile == "Always" and any(not column.boundaries for column in unbounded):
        name = next(column.name for column in unbounded if not column.boundaries)
        notice("VariableSizes", f"XLA compiles again for each length of {name!r}; bucketBoundaries limits their number")
    return not ragged


def _suggested(column: Column) -> int:
    """Return a power of two that is above the typical size."""
    return 1 << max(3, int(2 * column.typical_size).bit_length())
