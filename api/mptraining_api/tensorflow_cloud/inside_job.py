"""The `tensorflow_cloud` API inside a job, where the submitted program runs again and submitting is a no-op.

The trainer installs this module as `tensorflow_cloud` while a script runs; `mptraining.tensorflow_cloud` uses it, too.
It imports the standard library only.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from mptraining_api.tensorflow_cloud.machine_configs import (
    COMMON_MACHINE_CONFIGS,
    AcceleratorType,
    DockerConfig,
    MachineConfig,
    is_tpu_config,
)

__all__ = [
    "COMMON_MACHINE_CONFIGS",
    "AcceleratorType",
    "DockerConfig",
    "InsideJob",
    "MachineConfig",
    "__version__",
    "is_tpu_config",
    "remote",
    "run",
    "run_cloudtuner",
]

# The last release of tensorflow-cloud, which this module imitates.
__version__ = "0.1.16"

# tensorflow-cloud's own variable, which programs may read as well.
RUNNING_REMOTELY = "TF_KERAS_RUNNING_REMOTELY"
# Set in every worker. Not imported from `mptraining_api.launch`, because that needs pydantic.
_JOB_FILE = "MPTRAINING_JOB_FILE"


def remote() -> bool:
    """Return whether this program runs in a job, not on the machine that submitted it."""
    return bool(os.environ.get(RUNNING_REMOTELY) or os.environ.get(_JOB_FILE))


class InsideJob(dict[str, str | None]):
    """Result of `run` inside the job: an empty dict, which is false.

    The code after `run` is executed in the job, too. Code that uses the result (waits for the job, loads its model) is
    meant for the notebook: in the job it ends the program with exit code 0.
    """

    def __getitem__(self, key: str) -> NoReturn:
        self._end(f"[{key!r}]")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._end(f".{name}")

    @staticmethod
    def _end(use: str) -> NoReturn:
        print(f"the job's own {use} is for the notebook: the program ends here", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(0)


def run(*_arguments: Any, **_keywords: Any) -> InsideJob:
    """Do nothing: the job is running."""
    return InsideJob()


def run_cloudtuner(*_arguments: Any, **_keywords: Any) -> InsideJob:
    """Do nothing: the jobs are running."""
    return InsideJob()


_VIZIER = (
    "it needs AI Platform Vizier, which is shut down: write keras_tuner.BayesianOptimization or another tuner of "
    "keras_tuner in the script, without project_id, region and study_id; for trials at the same time, write an "
    "MPTrainingSweep (mptj submit sweep.yaml)"
)
# Public names of tensorflow_cloud 0.1.16 that have no equivalent, with the alternative.
_REMOVED = {"CloudTuner": _VIZIER, "CloudOracle": _VIZIER, "DistributingCloudTuner": _VIZIER}


def __getattr__(name: str) -> Any:
    """Raise ImportError for a removed name: `from … import` would replace the text of an AttributeError."""
    if name in _REMOVED:
        raise ImportError(f"tensorflow_cloud has no {name} here: {_REMOVED[name]}.")
    raise AttributeError(f"module 'tensorflow_cloud' has no attribute {name!r}")
