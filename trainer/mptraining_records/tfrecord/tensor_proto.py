"""Serialized tensors of `tf.io.serialize_tensor`: dtype and shape, without TensorFlow.

Source of the message: tensorflow/core/framework/tensor.proto, tensor_shape.proto and types.proto.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory  # type: ignore[import-untyped]

# The names of DataType by number; types that no feature can have are absent.
_DTYPES = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64"},
    **{10: "bool", 14: "bfloat16", 17: "uint16", 19: "float16", 22: "uint32"},
}


class TensorHeader(NamedTuple):
    """`whole` is True if the content has the bytes or strings of the whole shape."""

    dtype: str
    shape: tuple[int, ...]
    whole: bool


def header(content: bytes) -> TensorHeader | None:
    """Return dtype and shape of a serialized tensor; None for other bytes, and for a type that no feature can have."""
    tensor = _tensor()()
    try:
        tensor.ParseFromString(content)
    except message.DecodeError:
        return None
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.tensor_shape.unknown_rank:
        return None
    shape = tuple(int(dim.size) for dim in tensor.tensor_shape.dim)
    if any(size < 0 for size in shape):
        return None
    if dtype == "string":
        return TensorHeader(dtype, shape, len(tensor.string_val) == math.prod(shape))
    return TensorHeader(dtype, shape, len(tensor.tensor_content) == math.prod(shape) * item_bytes(dtype))


def item_bytes(dtype: str) -> int:
    """Return the bytes of one number; NumPy itself has no bfloat16."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


@functools.cache
def _tensor() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="mptraining/tensor.proto", package="mptraining", syntax="proto3")
    tensor = file.message_type.add(name="Tensor")
    shape = tensor.nested_type.add(name="Shape")
    dim = shape.nested_type.add(name="Dim")
    dim.field.add(name="size", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_INT64)
    dims = {"label": field.LABEL_REPEATED, "type": field.TYPE_MESSAGE, "type_name": ".mptraining.Tensor.Shape.Dim"}
    shape.field.add(name="dim", number=2, **dims)
    shape.field.add(name="unknown_rank", number=3, label=field.LABEL_OPTIONAL, type=field.TYPE_BOOL)
    optional = {"label": field.LABEL_OPTIONAL}
    tensor.field.add(name="dtype", number=1, type=field.TYPE_INT32, **optional)
    tensor.field.add(
        name="tensor_shape", number=2, type=field.TYPE_MESSAGE, type_name=".mptraining.Tensor.Shape", **optional
    )
    tensor.field.add(name="tensor_content", number=4, type=field.TYPE_BYTES, **optional)
    tensor.field.add(name="string_val", number=8, type=field.TYPE_BYTES, label=field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mptraining.Tensor"))
