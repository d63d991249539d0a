"""Hashes of numbers that are the same for ever: on every platform, with every version of numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]
# splitmix64 adds this odd constant (2^64 divided by the golden ratio) once per number drawn.
_STEP = np.uint64(0x9E3779B97F4A7C15)


def key(*numbers: int) -> UInt64s:
    """One key of shape [1] from any integers, each taken modulo 2^64; their order matters."""
    result = np.zeros(1, np.uint64)
    for number in numbers:
        result = hashed(result, np.array([number % 2**64], np.uint64))
    return result


def hashed(keys: UInt64s, numbers: UInt64s) -> UInt64s:
    """The element number `numbers` of the splitmix64 sequence that begins at `keys`; shapes broadcast.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), with the
    constants of Stafford's variant 13 as in Vigna's public-domain splitmix64.c. Arithmetic is modulo 2^64.
    """
    bits: UInt64s = keys + (numbers + np.uint64(1)) * _STEP
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
