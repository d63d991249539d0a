"""What a user holds in hand: the `mptj` command and the same things as Python functions.

Read in this order: `cli` (what can be typed; `records_commands` is one group of it), `local` (a job on this machine)
with `local_job` (where its paths point, whether its folder is its own), `gang` (the processes) with `verdict` (what
their ends mean) and `guard` (who ends them when this program is gone); `display` (events as text), `progress_bar`
(the same on a terminal) and `ending` (the last lines); `check` (what was decided for a job, and why) and `deep_check`
(what its model is like); `runs` (a run folder as a value), `compare` (runs side by side), `compare_page` and `curves`
(the same as a page).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptraining.compare import Comparison, compare
    from mptraining.local import run_local
    from mptraining.runs import Run, load_run

__all__ = ["Comparison", "Run", "compare", "load_run", "run_local"]

# A notebook's `import mptraining` costs nothing until a name is used.
_HOME = {
    "Comparison": "mptraining.compare",
    "compare": "mptraining.compare",
    "Run": "mptraining.runs",
    "load_run": "mptraining.runs",
    "run_local": "mptraining.local",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mptraining' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
