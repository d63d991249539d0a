"""The programs of tensorflow-cloud's repository, and the files that each needs besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_PYTHON = "src/python/tensorflow_cloud"
_VIZIER = "it needs CloudTuner, whose service is shut down"
_EXAMPLES = f"{_PYTHON}/core/tests/examples"


@dataclass(frozen=True)
class Program:
    """One program.

    `file` is its path in the repository, `folder` is copied and is the current folder. `replaced` are words with
    replacements, `changed` describes them in the table. `because` is the reason why a program cannot run anywhere
    today.
    """

    file: str
    kind: Literal["script", "notebook", "submit"]
    folder: str
    arguments: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    changed: str = ""
    colab: bool = False
    because: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or Path(self.file).name


def _script(name: str, *arguments: str, because: str = "", changed: str = "") -> Program:
    return Program(f"{_EXAMPLES}/{name}.py", "script", f"{_PYTHON}/core", arguments, because=because, changed=changed)


PROGRAMS = (
    _script("call_run_on_script_with_keras_fit"),
    _script("call_run_on_script_with_keras_ctl"),
    _script("call_run_on_script_with_keras_fit_cloud_build", "--bucket_name=builds"),
    _script("call_run_on_script_with_keras_save_and_load", "--path=saved"),
    _script("call_run_on_notebook_with_keras_fit"),
    _script(
        "call_run_on_script_with_keras_tuner_search", "--path=saved", changed="keras-tuner 1.3.5, as its note says"
    ),
    _script(
        "call_run_within_script_with_autokeras",
        because="DockerConfig has no base_image in tensorflow-cloud 0.1.16 either; autokeras is for Keras 2",
    ),
    Program(
        f"{_EXAMPLES}/call_run_within_script_with_keras_fit.py",
        "script",
        f"{_PYTHON}/core",
        replaced={"epochs = 500": "epochs = 2"},
        changed="2 epochs of 500",
    ),
    Program(f"{_EXAMPLES}/multi_file_example/scale_model.py", "script", f"{_EXAMPLES}/multi_file_example"),
    Program(
        f"{_EXAMPLES}/call_run_within_nb_on_colab.ipynb",
        "notebook",
        _EXAMPLES,
    ),
    Program(
        f"{_EXAMPLES}/dogs_classification.ipynb",
        "notebook",
        _EXAMPLES,
        replaced={"epochs = 500": "epochs = 2"},
        changed="2 epochs of 500",
        colab=True,
    ),
    Program(
        "g3doc/tutorials/overview.ipynb",
        "notebook",
        "g3doc/tutorials",
        replaced={'"import sys"': '"import sys, os"'},
        changed="import os, which it lacks itself",
    ),
    Program(
        "g3doc/tutorials/distributed_training_nasnet_with_tensorflow_cloud.ipynb",
        "notebook",
        "g3doc/tutorials",
        replaced={"epochs=100": "epochs=1"},
        changed="1 epoch of 100",
        because="4 workers trained it and wrote its checkpoint; its SavedModel was not written when the time was over",
    ),
    Program(
        "g3doc/tutorials/hp_tuning_cifar10_using_google_cloud.ipynb",
        "notebook",
        "g3doc/tutorials",
        because=_VIZIER,
    ),
    Program(
        "g3doc/tutorials/hp_tuning_wide_and_deep_model.ipynb",
        "notebook",
        "g3doc/tutorials",
        because=f"its data is a file that its user puts into the bucket; {_VIZIER}",
    ),
    Program(
        f"{_PYTHON}/tuner/tests/examples/ai_platform_vizier_tuner.ipynb",
        "notebook",
        f"{_PYTHON}/tuner/tests/examples",
        because=_VIZIER,
    ),
    Program(
        f"{_PYTHON}/tuner/tests/examples/cloud_fit.ipynb",
        "notebook",
        f"{_PYTHON}/tuner/tests/examples",
    ),
)
