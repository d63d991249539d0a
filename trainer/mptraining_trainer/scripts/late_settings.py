"""TensorFlow settings that a script makes after TensorFlow was initialized, such as numbers of threads.

The job selects the devices and initializes TensorFlow before the script's first line, so these calls would raise here
although they succeed in a fresh process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from mptraining_trainer.reporting.telemetry import Notify

_TOO_LATE = ("after initialization", "after being initialized", "have been initialized")


@contextmanager
def ignore_late_settings(notice: Notify) -> Iterator[None]:
    """Replace the error of such a setting by a notice; other errors propagate."""
    places = [
        (tf.config.threading, "set_intra_op_parallelism_threads"),
        (tf.config.threading, "set_inter_op_parallelism_threads"),
        (tf.config, "set_visible_devices"),
        (tf.config, "set_logical_device_configuration"),
        (tf.config.experimental, "set_visible_devices"),
        (tf.config.experimental, "set_virtual_device_configuration"),
        (tf.config.experimental, "set_memory_growth"),
    ]
    with ExitStack() as replaced:
        for module, name in places:
            original = getattr(module, name)
            setattr(module, name, _tolerant(original, name, notice))
            replaced.callback(setattr, module, name, original)
        yield


def _tolerant(original: Callable[..., Any], name: str, notice: Notify) -> Callable[..., Any]:
    @functools.wraps(original)
    def setting(*arguments: Any, **keywords: Any) -> Any:
        try:
            return original(*arguments, **keywords)
        except RuntimeError as error:
            if not any(words in str(error) for words in _TOO_LATE):
                raise
            notice("SettingIgnored", f"{name}: TensorFlow runs already, with the devices and threads of the job")
            return None

    return setting
