"""`make bench-client`: the waiting times of a notebook and of `mptj board`, and the size of an installation.

Every round is a fresh process. The API server is a real one on this machine; the first training step is one on the kind
cluster of `make cluster images` with the operator installed, and skipped with a message where there is none. The size
needs a package index. One JSON line a figure on standard output, rounds on standard error; the exit code is 0 whether
goals are met or not.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.client.board import POINTS, RUNS, one_round, runs_folder
from bench.client.notebook_size import newcomers
from bench.client.submit import cpu_of_import, on_control_plane, on_kind, seconds_to
from bench.figures import figure, progress, publish

ROUNDS = 7
# A job that trains takes half a minute.
KIND_ROUNDS = 5
LIST_SECONDS, COMPARE_SECONDS = 1.0, 2.0
IMPORT_SECONDS, CREATED_SECONDS, FIRST_STEP_SECONDS, MEGABYTES = 0.5, 2.0, 25.0, 100.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of what needs no network and no kubelet")
    parser.add_argument("--only", choices=GROUPS, nargs="+", default=[], help="these figures alone")
    parser.add_argument("--rounds", type=int, help="instead of 7, and 5 on kind")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and namespaces are removed
    for name in arguments.only or (QUICK if arguments.quick else GROUPS):
        GROUPS[name](1 if arguments.quick else arguments.rounds)


def _import(rounds: int | None) -> None:
    """The cost of `import` before anything is used of it: two lines that notebooks have."""
    for name, module in (("mptraining", "mptraining"), ("tensorflow_cloud", "mptraining.tensorflow_cloud")):
        cpu_of_import(module)  # compiles the bytecode that has not been compiled yet
        _publish(
            f"import_{name}_cpu_seconds", [cpu_of_import(module) for _ in range(rounds or ROUNDS)], "s", IMPORT_SECONDS
        )


def _created(rounds: int | None) -> None:
    """From the call of `run` to its return: the source packed, the Kubernetes client loaded, ConfigMap
    and job created.
    """
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as folder, on_control_plane(Path(folder)) as place:
        seconds_to("created", place)
        _publish(
            "run_to_created_seconds",
            [seconds_to("created", place) for _ in range(rounds or ROUNDS)],
            "s",
            CREATED_SECONDS,
        )


def _first_step(rounds: int | None) -> None:
    """From the call of `run` to the moment at which the notebook reads that the first step is complete."""
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as folder, on_kind(Path(folder)) as place:
        if place is None:
            progress("no kind cluster with the operator installed: the first training step is left out")
            return
        values = [seconds_to("first step", place) for _ in range(rounds or KIND_ROUNDS)]
    _publish("run_to_first_step_seconds", values, "s", FIRST_STEP_SECONDS)


def _size(rounds: int | None) -> None:
    """The installed size of the packages that pip adds to Colab's."""
    del rounds
    found = newcomers()
    for name, size in sorted(found.items(), key=lambda each: -each[1]):
        progress(f"  {name}: {size / 1e6:.1f} MB")
    _publish("notebook_megabytes", [sum(found.values()) / 1e6], "MB", MEGABYTES)


def _board(rounds: int | None) -> None:
    """The list of 1,000 runs of 10,000 points, and a comparison of 50 of them, as the board's server answers."""
    with runs_folder(RUNS, POINTS) as folder:
        found = [one_round(folder) for _ in range(rounds or ROUNDS)]
    for name, most in (("first_list", LIST_SECONDS), ("list_again", LIST_SECONDS), ("compare", COMPARE_SECONDS)):
        for kind in ("", "_cpu"):
            _publish(f"board_{name}{kind}_seconds", [each[name + kind] for each in found], "s", most)


def _publish(what: str, values: Sequence[float], unit: str, most: float) -> None:
    """Publish a figure with a goal of its own: its ratio is the share of the goal."""
    progress(f"  {what}: {', '.join(f'{value:.3g}' for value in values)} {unit}")
    publish(figure(f"client.{what}", values, [most] * len(values), unit=unit, against="goal", most=1.0))


GROUPS: dict[str, Callable[[int | None], None]] = {
    "import": _import,
    "created": _created,
    "first_step": _first_step,
    "size": _size,
    "board": _board,
}
QUICK = ("import", "created")

if __name__ == "__main__":
    main()
