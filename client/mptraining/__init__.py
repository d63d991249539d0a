"""Train Keras models on Kubernetes: submit a job, follow it, take its model.

The public names are below. `packaging` ships a program; `cluster` runs a job on Kubernetes, `local` on this machine;
`display` shows it; `runs` reads a run folder and `compare` compares several; `cli` is `mptj`; `colab` and
`tensorflow_cloud` are for programs that were written for tensorflow-cloud.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptraining.cluster.connection import Where
    from mptraining.cluster.job import Job, attach
    from mptraining.cluster.submit import submit
    from mptraining.compare import Comparison, compare
    from mptraining.local.run import run_local
    from mptraining.runs import Run, load_run

__all__ = ["Comparison", "Job", "Run", "Where", "attach", "compare", "load_run", "run_local", "submit"]

# A notebook's `import mptraining` costs nothing until a name is used.
_HOME = {
    "Comparison": "mptraining.compare",
    "compare": "mptraining.compare",
    "Run": "mptraining.runs",
    "load_run": "mptraining.runs",
    "run_local": "mptraining.local.run",
    "Job": "mptraining.cluster.job",
    "attach": "mptraining.cluster.job",
    "Where": "mptraining.cluster.connection",
    "submit": "mptraining.cluster.submit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mptraining' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
