"""What a user holds in hand: the `mptj` command and the same things as Python functions.

Read in this order: `cli` (what can be typed; `records_commands` is one group of it), `local` (a job on this machine)
with `local_job` (where its paths point, whether its folder is its own), `gang` (the processes) with `verdict` (what
their ends mean) and `guard` (who ends them when this program is gone); `display` (events as text), `progress_bar`
(the same on a terminal) and `ending` (the last lines); `check` (what was decided for a job, and why) and `deep_check`
(what its model is like); `runs` (a run folder as a value), `compare` (runs side by side), `compare_page` and `curves`
(the same as a page).

What is shipped: `shipping` turns a script, a notebook, a folder or a function into a `package`, by `source_folder`
(which files), `notebook_cells` and `notebook_program` (a notebook as a program) with `pip_lines` (what it installs),
`function_source` and `local_modules` (what a function needs).

From a notebook: `tensorflow_cloud` and `colab`, over `run_arguments` (checked), `run_document` (a job made of them) and
`run_program` (shipped and started, here by `local_backend`); `tensorflow_cloud_seams` redirects the real package.
`packaging.keras_choice` is the Keras that a program's text asks for, `packaging.cloud_fit` a model of this process.

On a cluster: `cluster` (which one; `gke` for Google's) gives an `api_server`, whose refusals are `cluster_problems`;
`submission` makes a `job`, with a look at the `nodes`; `job_view` is one look at it, `cluster_events` what Kubernetes
says of it. `following` a job takes its status and the `pod_logs` as they come, `waiting` draws them on one of the
`displays` (`notebook_display` in a cell). `model_fetch` brings the model here, by `pod_exec` from a pod that keeps it;
`trained_model` opens it, also with an `older_keras`. `cluster_commands` are the verbs of `mptj` with the
`place_options`, `submit_command` with its `submit_flags` one of them; `kubectl_completion` is what kubectl asks.
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
