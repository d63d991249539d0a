"""A callback's declared state, through JSON and arrays and back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from mptraining_trainer.training.keras_callbacks import pack_state, state_methods, unpack_state

leaves = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text()
states = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda k: k[:1] != "$"), inner)
)


@given(states)
def test_json_values_come_back_as_they_were(state: Any) -> None:
    value, arrays = pack_state(state)
    assert arrays == []
    assert unpack_state(json.loads(json.dumps(value, allow_nan=False)), arrays) == state


def test_arrays_tensors_and_nan_come_back() -> None:
    state = {
        "a": [np.float16([1, 2]), {"b": np.int64(3)}],
        "c": tf.constant([[1.5]]),
        "d": (1, math.nan),
        "e": np.bool_(True),
    }
    value, arrays = pack_state(state)
    back = unpack_state(json.loads(json.dumps(value, allow_nan=False)), arrays)
    assert (back["a"][0].dtype, back["a"][0].tolist()) == (np.float16, [1, 2])
    assert (back["a"][1]["b"], back["c"].tolist(), back["e"]) == (3, [[1.5]], True)
    assert back["d"][0] == 1
    assert math.isnan(back["d"][1])


@pytest.mark.parametrize(
    ("state", "place"),
    [({"a": [1, object()]}, "state['a'][1] is of object"), ({1: 2}, "state has the key 1"), ({"$array": 0}, "$array")],
)
def test_anything_else_is_named(state: Any, place: str) -> None:
    with pytest.raises(TypeError) as raised:
        pack_state(state)
    assert place in str(raised.value)


def test_which_methods_declare_it() -> None:
    class Lightning:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    assert state_methods(Lightning()) == ("state_dict", "load_state_dict")
    assert state_methods(object()) is None
