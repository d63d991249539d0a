"""`mptj board` over 1,000 runs of 10,000 points: its list of runs, and the curves of 50 of them, in a fresh process.

`python -m bench.client.board FOLDER` measures one round over existing runs and prints a JSON object of seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.client.board_runs import write_runs
from bench.figures import progress
from bench.rounds import ROOT

RUNS, POINTS, COMPARED = 1000, 10_000, 50


@contextmanager
def runs_folder(runs: int, points: int) -> Iterator[Path]:
    """Yield a temporary folder with the runs: 2 GB for 1,000 of 10,000 points."""
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-board-") as folder:
        progress(f"writing {runs:,} runs of {points:,} points")
        write_runs(Path(folder), runs=runs, points=points)
        yield Path(folder)


def one_round(folder: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "bench.client.board", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(folder: str) -> dict[str, float]:
    """Return seconds: the first list (all folders found and read), a later one, and 50 curves of 10,000 points.

    Each is what the server does for the request, JSON included. `compare` reads the files and draws nothing from
    memory; `compare_again` is the same request again.
    """
    from mptraining.board.board import Board
    from mptraining.board.series import chart
    from mptraining.board.server import JSONResponse
    from mptraining.board.sources import folder_source

    board = Board([folder_source(folder)])

    def first() -> Any:
        board.refresh()
        return board.runs()

    def compare() -> Any:
        readers = [each for each in (board.reader(run["id"]) for run in listed["runs"][:COMPARED]) if each]
        curves = {each.id: each.curves() for each in readers}
        return chart("loss", "step", curves, pixels=800)

    found: dict[str, float] = {}
    listed = _timed(found, "first_list", first, JSONResponse)
    _timed(found, "list_again", board.runs, JSONResponse)
    drawn = _timed(found, "compare", compare, JSONResponse)
    _timed(found, "compare_again", compare, JSONResponse)
    assert len(drawn["series"]) == min(COMPARED, len(listed["runs"]))
    return found


def _timed(found: dict[str, float], name: str, call: Callable[[], Any], answer: Callable[[Any], object]) -> Any:
    begin, cpu = time.perf_counter(), time.process_time()
    result = call()
    answer(result)
    found[name], found[f"{name}_cpu"] = time.perf_counter() - begin, time.process_time() - cpu
    return result


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
