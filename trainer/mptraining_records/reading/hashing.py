"""Hashes of numbers that are the same for ever: on every platform, with every version of numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]
# splitmix64 adds this odd constant (2^64 divided by the golden ratio) once per number drawn.
_STEP = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_ALL = 2**64 - 1


def key(*numbers: int) -> UInt64s:
    """One key of shape [1] from any integers, each taken modulo 2^64; their order matters."""
    result = 0
    # `hashed` of single numbers, without numpy, which takes ten times as long for those.
    for number in numbers:
        result = (result + (number + 1) * _STEP) & _ALL
        result = ((result ^ result >> 30) * _MIX[0]) & _ALL
        result = ((result ^ result >> 27) * _MIX[1]) & _ALL
        result ^= result >> 31
    return np.array([result], np.uint64)


def hashed(keys: UInt64s, numbers: UInt64s) -> UInt64s:
    """The element number `numbers` of the splitmix64 sequence that begins at `keys`; shapes broadcast.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), with the
    constants of Stafford's variant 13 as in Vigna's public-domain splitmix64.c. Arithmetic is modulo 2^64.
    """
    bits: UInt64s = keys + (numbers + np.uint64(1)) * np.uint64(_STEP)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits
