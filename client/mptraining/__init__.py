"""Python client for training Keras models on Kubernetes: submit a job, follow it, fetch its model.

`__all__` is the public API. `training_job` is a job as Python objects; `packaging` packages a program; `cluster` runs a
job on Kubernetes, `local` on this machine, and `sweeps` searches its hyperparameters on either; `display` shows it;
`runs` reads a run folder and `comparison` compares several; `cli` is `mptj`; `colab` and `tensorflow_cloud`
(implemented in `tensorflow_cloud_compat`) run programs that were written for tensorflow-cloud.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.cluster.job import Job, attach, list_jobs
    from mptraining.cluster.submission import submit
    from mptraining.comparison import Comparison, compare
    from mptraining.local.local_job import LocalJob
    from mptraining.local.runner import LocalRunner, run_local
    from mptraining.packaging.function_result import FunctionFailed
    from mptraining.runs import History, Run, load_run
    from mptraining.sweeps.cluster import ClusterSweep, attach_sweep
    from mptraining.sweeps.result import Sweep, submit_sweep, sweep
    from mptraining.training_job import TrainingJob
    from mptraining_api.outputs.fields import Checkpoint, Export, MLflow, Output, Profile, Tracking, WandB
    from mptraining_api.pods.fields import InitContainer, PodTemplate, Resources
    from mptraining_api.programs.fields import Application, Ensemble, Function, Prediction, Script
    from mptraining_api.spec import (
        Accelerator,
        Archive,
        BadRecords,
        BatchSize,
        ConfigMapSource,
        Data,
        Elastic,
        Feature,
        KerasObject,
        LearningRateScaling,
        LossScale,
        Machine,
        Precision,
        Program,
        RunPolicy,
        Scheduling,
        Shuffle,
        Source,
        Training,
    )

__all__ = [
    "Accelerator",
    "Application",
    "Archive",
    "BadRecords",
    "BatchSize",
    "Checkpoint",
    "Cluster",
    "ClusterSweep",
    "Comparison",
    "ConfigMapSource",
    "Data",
    "Elastic",
    "Ensemble",
    "Export",
    "Feature",
    "Function",
    "FunctionFailed",
    "History",
    "InitContainer",
    "Job",
    "KerasObject",
    "LearningRateScaling",
    "LocalJob",
    "LocalRunner",
    "LossScale",
    "MLflow",
    "Machine",
    "Output",
    "PodTemplate",
    "Precision",
    "Prediction",
    "Profile",
    "Program",
    "Resources",
    "Run",
    "RunPolicy",
    "Scheduling",
    "Script",
    "Shuffle",
    "Source",
    "Sweep",
    "Tracking",
    "Training",
    "TrainingJob",
    "WandB",
    "attach",
    "attach_sweep",
    "compare",
    "list_jobs",
    "load_run",
    "run_local",
    "submit",
    "submit_sweep",
    "sweep",
]

# The module of each public name, imported on first use, so that `import mptraining` is fast.
_MODULE_OF = {
    "Comparison": "mptraining.comparison",
    "compare": "mptraining.comparison",
    "History": "mptraining.runs",
    "Run": "mptraining.runs",
    "load_run": "mptraining.runs",
    "LocalJob": "mptraining.local.local_job",
    "LocalRunner": "mptraining.local.runner",
    "run_local": "mptraining.local.runner",
    "FunctionFailed": "mptraining.packaging.function_result",
    "Job": "mptraining.cluster.job",
    "attach": "mptraining.cluster.job",
    "list_jobs": "mptraining.cluster.job",
    "Cluster": "mptraining.cluster.connection",
    "submit": "mptraining.cluster.submission",
    "ClusterSweep": "mptraining.sweeps.cluster",
    "attach_sweep": "mptraining.sweeps.cluster",
    "Sweep": "mptraining.sweeps.result",
    "submit_sweep": "mptraining.sweeps.result",
    "sweep": "mptraining.sweeps.result",
}
# The classes of a job's sections.
_MODULE_OF |= dict.fromkeys(set(__all__) - set(_MODULE_OF), "mptraining.training_job")


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mptraining' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
