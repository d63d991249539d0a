from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mptraining_records.reading.order import key, splitmix64


def test_numbers_are_those_of_splitmix64() -> None:
    # The first outputs of Vigna's splitmix64.c for the seed 1234567.
    drawn = splitmix64(np.array([1234567], np.uint64), np.arange(5, dtype=np.uint64))
    assert drawn.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_keys_depend_on_every_number_and_their_order() -> None:
    keys = [key(1, 2), key(2, 1), key(1), key(1, 2, 0), key(-1), key(2**64 + 5)]
    assert len({int(each[0]) for each in keys}) == len(keys)
    assert key(-1) == key(2**64 - 1)


@given(st.lists(st.integers(-(2**65), 2**65), max_size=4))
def test_a_key_is_what_is_hashed_one_number_after_the_other(numbers: list[int]) -> None:
    expected = np.zeros(1, np.uint64)
    for number in numbers:
        expected = splitmix64(expected, np.array([number % 2**64], np.uint64))
    assert key(*numbers).tolist() == expected.tolist()
