"""`python -m hack.parity --programs 2000 --seed 1`: generated programs, trained by plain `fit` and by this trainer.

Finished programs are in build/parity/results.jsonl and are not run again while the sources stay as they are. The exit
code is 1 when a program differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hack.parity.programs.named import named_programs
from hack.parity.programs.program import Program
from hack.parity.programs.source import source
from hack.parity.programs.strategies import drawn
from hack.parity.results import Result, Results, report, sources_digest
from hack.parity.training.processes import Child, Pair

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "parity"
SHOWN = 5


def main() -> int:
    arguments = _arguments()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = Results(FOLDER / "results.jsonl", sources_digest(ROOT))
    programs = [Program.from_json(text) for text in arguments.program] or [
        *named_programs(),
        *drawn(arguments.programs, arguments.seed),
    ]
    done = _run(programs, results)
    print(report(done))
    different = [result for result in done if result.different]
    for result in different[:SHOWN]:
        print(f"\n{'=' * 100}\n{result.program.to_json()}")
        for compared in result.different:
            print(f"  {compared['variant']}: {compared['what']}")
        print(f"{'-' * 100}\n{source(result.program)}", flush=True)
    return 1 if different else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hack.parity", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="how many are drawn, besides the named cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", action="append", default=[], metavar="JSON", help="this one, as a report shows it")
    return parser.parse_args()


def _run(programs: list[Program], results: Results) -> list[Result]:
    """Return every program's result; run those without one, in two processes."""
    single = [program for program in programs if results.get(program, workers=False) is None]
    # A list's iterator hands each out once, to any thread.
    queues = {
        generation: iter([program for program in single if program.generation == generation])
        for generation in ("Keras3", "Legacy")
    }
    pairs = [program for program in programs if program.workers and results.get(program, workers=True) is None]
    lock = threading.Lock()
    total = len(single) + len(pairs)
    finished = itertools.count(1)

    def add(program: Program, answer: dict[str, Any], *, workers: bool) -> None:
        with lock:
            results.add(program, answer, workers=workers)
            if not (number := next(finished)) % 50:
                print(f"{number} of {total} programs", file=sys.stderr, flush=True)

    def work(first: str) -> None:
        for generation in (first, *({"Keras3", "Legacy"} - {first})):
            with Child(generation, FOLDER) as child:
                while (program := next(queues[generation], None)) is not None:
                    add(program, child.attempt(program), workers=False)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, ("Keras3", "Legacy")))
    for generation in ("Keras3", "Legacy"):
        with Pair(generation, FOLDER) as pair:
            for program in pairs:
                if program.generation == generation and _has_reference(results, program):
                    add(program, pair.attempt(program), workers=True)
    done = [results.get(program, workers=False) for program in programs]
    done += [results.get(program, workers=True) for program in programs if program.workers]
    return [result for result in done if result is not None]


def _has_reference(results: Results, program: Program) -> bool:
    """Report whether plain Keras trains it, and one device is not refused already."""
    result = results.get(program, workers=False)
    return result is not None and result.verdict not in ("no program", "refused")


if __name__ == "__main__":
    sys.exit(main())
