"""Names of Keras' applications, optimizers, losses, metrics and schedules: the table that `mptj check` reads.

`python -m hack.keras_names` writes it from the installed Keras 3 and tf_keras.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "api" / "mptraining_api" / "validation" / "keras_names.toml"
_HEAD = "# Names that each generation of Keras knows. Made by `python -m hack.keras_names`; a test compares.\n"


def installed_names() -> dict[str, dict[str, Any]]:
    """Return the table of the installed packages: generation -> version and names by kind."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from mptraining_trainer import keras_backend
    from mptraining_trainer.model import applications
    from mptraining_trainer.model.compile import classes

    table: dict[str, dict[str, Any]] = {}
    for generation in ("Keras3", "Legacy"):
        keras = keras_backend.load(generation)
        schedules = keras.module.optimizers.schedules
        table[generation] = {
            "version": str(keras.module.__version__),
            "applications": applications.names(keras),
            "optimizers": sorted(classes(keras, "optimizers")),
            "losses": sorted(classes(keras, "losses")),
            "metrics": sorted(classes(keras, "metrics")),
            "schedules": sorted(
                name
                for name, value in vars(schedules).items()
                if inspect.isclass(value) and issubclass(value, schedules.LearningRateSchedule)
                and value is not schedules.LearningRateSchedule
            ),
        }  # fmt: skip
    return table


def text(table: dict[str, dict[str, Any]]) -> str:
    """Return the table as TOML."""
    parts = [_HEAD]
    for generation, kinds in table.items():
        parts.append(f"\n[{generation}]\n")
        for kind, value in kinds.items():
            if isinstance(value, str):
                parts.append(f"{kind} = {json.dumps(value)}\n")
            else:
                rows = "".join(f"  {json.dumps(name)},\n" for name in value)
                parts.append(f"{kind} = [\n{rows}]\n")
    return "".join(parts)


if __name__ == "__main__":
    TABLE.write_text(text(installed_names()), encoding="utf-8")
