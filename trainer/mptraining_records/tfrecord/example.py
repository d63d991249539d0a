"""tf.train.Example and SequenceExample without TensorFlow: one record as named lists of bytes, integers or floats.

Source of the message: tensorflow/core/example/feature.proto and example.proto. It is registered in a separate
descriptor pool, so that TensorFlow can register its own copy in the same process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory  # type: ignore[import-untyped]
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData

Kind = Literal["bytes", "int64", "float"]
Values = list[bytes] | NDArray[np.int64] | NDArray[np.float32]
Encodable = bytes | str | int | float | NDArray[Any] | Sequence[Any]

_KINDS: dict[str, Kind] = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
# In the order of _KINDS; TYPE_… is the name of the element's type in descriptor.proto.
_LISTS = {"BytesList": "TYPE_BYTES", "FloatList": "TYPE_FLOAT", "Int64List": "TYPE_INT64"}


def encode(features: Mapping[str, Encodable]) -> bytes:
    """Serialize the features deterministically: bytes and text as a bytes list, integers and booleans as an int64
    list, other numbers as a float list; arrays are flattened in C order.

    Raises TypeError for any other value and for a list of mixed kinds.
    """
    example = _example()()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, bytes | str):
            feature.bytes_list.value.append(_bytes(value))
            continue
        if isinstance(value, int):
            feature.int64_list.value.append(int(value))
            continue
        if isinstance(value, float):
            feature.float_list.value.append(value)
            continue
        if isinstance(value, Sequence) and value and all(isinstance(item, bytes | str) for item in value):
            feature.bytes_list.value.extend(map(_bytes, value))
            continue
        array = np.asarray(value).ravel()
        if array.dtype.kind in "bui":
            feature.int64_list.value.extend(array.astype(np.int64).tolist())
        elif array.dtype.kind == "f":
            feature.float_list.value.extend(array.astype(np.float32).tolist())
        elif array.dtype.kind in "SU" and isinstance(value, np.ndarray):
            feature.bytes_list.value.extend(map(_bytes, array.tolist()))
        else:
            raise TypeError(f"feature {name!r}: cannot store {array.dtype} values")
    encoded: bytes = example.SerializeToString(deterministic=True)
    return encoded


def parse(record: bytes) -> dict[str, tuple[Kind, Values]]:
    """Parse a record into features by name: bytes as a list, int64 and float as arrays of shape [values].

    Of a tf.train.SequenceExample, these are the features of its context. A feature without a kind is skipped. Raises
    InvalidData if the record is not a tf.train.Example.
    """
    return _values(_message(record).features.feature)


def parse_sequences(record: bytes) -> dict[str, list[tuple[Kind, Values]]]:
    """Parse the feature lists of a tf.train.SequenceExample by name, each step as `parse` does; a tf.train.Example has
    none.

    A step without a kind is an empty list of bytes. Raises InvalidData as `parse` does.
    """
    lists = _message(record).feature_lists.feature_list
    return {
        name: [_values({"": step}).get("", ("bytes", [])) for step in sequence.feature]
        for name, sequence in lists.items()
    }


def _message(record: bytes) -> Any:
    # A SequenceExample has the field number of an Example's features for its context.
    example = _example()()
    try:
        example.ParseFromString(record)
    except message.DecodeError as error:
        raise InvalidData(
            "record",
            "not a tf.train.Example",
            expected="serialized tf.train.Example records",
            next_step="Write them with `mptj records convert`",
        ) from error
    return example


def _values(of: Mapping[str, Any]) -> dict[str, tuple[Kind, Values]]:
    features: dict[str, tuple[Kind, Values]] = {}
    for name, feature in of.items():
        which = feature.WhichOneof("kind")
        if which is None:
            continue
        kind = _KINDS[which]
        values = getattr(feature, which).value
        if kind == "bytes":
            features[name] = (kind, list(values))
        elif kind == "int64":
            features[name] = (kind, np.array(values, np.int64))
        else:
            features[name] = (kind, np.array(values, np.float32))
    return features


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


@functools.cache
def _example() -> Any:
    """Build the message class from its descriptor in this module."""
    field = descriptor_pb2.FieldDescriptorProto
    optional, repeated = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(name="mptraining/example.proto", package="tensorflow", syntax="proto3")

    def add(owner: Any, name: str, number: int, label: int, kind: int | str, **more: int) -> None:
        if isinstance(kind, str):
            more["type"], kind = field.TYPE_MESSAGE, f".tensorflow.{kind}"
            owner.field.add(name=name, number=number, label=label, type_name=kind, **more)
        else:
            owner.field.add(name=name, number=number, label=label, type=kind, **more)

    for name, kind in _LISTS.items():
        add(file.message_type.add(name=name), "value", 1, repeated, getattr(field, kind))
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, list_name) in enumerate(zip(_KINDS, _LISTS, strict=True), 1):
        add(feature, name, number, optional, list_name, oneof_index=0)

    def add_map(name: str, field_name: str, value: str) -> None:
        owner = file.message_type.add(name=name)
        entry = owner.nested_type.add(name=f"{value}Entry")
        entry.options.map_entry = True
        add(entry, "key", 1, optional, field.TYPE_STRING)
        add(entry, "value", 2, optional, value)
        add(owner, field_name, 1, repeated, f"{name}.{value}Entry")

    add_map("Features", "feature", "Feature")
    add(file.message_type.add(name="FeatureList"), "feature", 1, repeated, "Feature")
    add_map("FeatureLists", "feature_list", "FeatureList")
    example = file.message_type.add(name="Example")
    add(example, "features", 1, optional, "Features")
    add(example, "feature_lists", 2, optional, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
