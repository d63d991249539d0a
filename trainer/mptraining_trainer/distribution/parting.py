"""Workers part when the chief has what the last collective operation brought.

A worker is done with a gather once it has the others' shares, and they may still be fetching its own: were it to exit
now, the chief would lose a worker in mid-operation, and with it the checkpoint that all of them waited for.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

# The service in which the workers of MultiWorkerMirroredStrategy find each other keeps keys and values for them; it
# has no public name.
from tensorflow.python.eager import context

from mptraining_api.launch import Seat

_KEY = "mptraining/parted"
# Longer than a copy of a large state takes, and within the grace of a spot machine.
_SECONDS = 5.0


def part(seat: Seat) -> None:
    """To be called once by every worker, after its last collective operation and before it exits.

    The others wait for the chief, for 5 s at most, and not for one that is gone: whatever there is to say of that, the
    chief's own end says.
    """
    if len(seat.hosts) == 1:
        return
    with contextlib.suppress(tf.errors.OpError):
        if seat.is_chief:
            context.context().set_config_key_value(_KEY, "")
        else:
            context.context().get_config_key_value(_KEY, int(_SECONDS * 1000))
