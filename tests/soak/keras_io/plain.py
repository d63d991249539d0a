"""`python -m tests.soak.keras_io.plain SCRIPT DEVICES POLICY`: the script under Keras alone, as the stubs seed it.

More than one device: inside the scope of a MirroredStrategy over so many CPU devices. A policy: set before the script
begins. The result shows whether plain Keras can do what the trainer must do.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    path, devices, policy = arguments[0], int(arguments[1]), arguments[2]
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
    keras = importlib.import_module("tf_keras" if legacy else "keras")
    # Python sets these when it runs the script itself.
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).resolve().parent))
    if policy != "float32":
        (keras.mixed_precision.set_global_policy if legacy else keras.config.set_dtype_policy)(policy)
    with contextlib.ExitStack() as around:
        if devices > 1:
            import tensorflow as tf

            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
            strategy = tf.distribute.MirroredStrategy([f"CPU:{each}" for each in range(devices)])
            around.enter_context(strategy.scope())
        runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
