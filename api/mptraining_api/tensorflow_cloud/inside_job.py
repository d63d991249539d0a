"""`tensorflow_cloud` inside a job: the same program runs there once more, and what submitted it does nothing.

The trainer puts this module in the place of `tensorflow_cloud` while a script runs; `mptraining.tensorflow_cloud` asks
it too. Standard library alone.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from mptraining_api.tensorflow_cloud import package
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
    "cloud_fit",
    "install",
    "is_tpu_config",
    "remote",
    "run",
    "run_cloudtuner",
]

# The last release of tensorflow-cloud, whose behaviour this is.
__version__ = "0.1.16"

# tensorflow-cloud's own variable, by which its users' programs may ask too.
RUNNING_REMOTELY = "TF_KERAS_RUNNING_REMOTELY"
# Every worker has it (`mptraining_api.launch`, whose import takes pydantic).
_JOB_FILE = "MPTRAINING_JOB_FILE"


def remote() -> bool:
    """Whether this program runs in a job, not where it was submitted."""
    return bool(os.environ.get(RUNNING_REMOTELY) or os.environ.get(_JOB_FILE))


class InsideJob(dict[str, str | None]):
    """What `run` returns in the job itself: empty and false.

    What follows `run` is executed there too. A line that uses the job (waits for it, takes its model) is meant for the
    notebook: there the program has reached its end, and leaves with success.
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
    """Nothing: the job is running."""
    return InsideJob()


def run_cloudtuner(*_arguments: Any, **_keywords: Any) -> InsideJob:
    """Nothing: the jobs are running."""
    return InsideJob()


def cloud_fit(*_arguments: Any, **_keywords: Any) -> InsideJob:
    """Nothing: the job is running."""
    return InsideJob()


def install(*_arguments: Any, **_keywords: Any) -> None:
    """Nothing: there is nothing to redirect."""


def __getattr__(name: str) -> Any:
    return package.missing(__name__, name)


package.complete(sys.modules[__name__])
