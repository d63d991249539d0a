"""Runs keras.io's scripts under plain Keras and under the trainer, unchanged, and writes the table of outcomes.

    python -m tests.soak.keras_io FOLDER                              every script, every variant; hours
    python -m tests.soak.keras_io FOLDER --only vae gan --variants plain-1-float32 script-2-mixed_bfloat16
    python -m tests.soak.keras_io FOLDER --write docs/keras-io.md     the table of all runs that there are

FOLDER has the scripts in folders of their kind (vision/mnist_convnet.py), as in keras.io's repository. Results are JSON
lines; a run with a result is not repeated. One process at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.soak.document_table import put
from tests.soak.keras_io import outcomes, table, variants
from tests.soak.keras_io.catalogue import Script, scripts
from tests.soak.keras_io.functions import NoFunction
from tests.soak.keras_io.runs import Bench, Run, environ, read
from tests.soak.keras_io.server import Server
from tests.soak.keras_io.variants import PLAIN, Variant


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.keras_io",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("folder", type=Path, help="the scripts, in folders of their kind")
    parser.add_argument("--only", nargs="*", default=(), help="scripts with one of these in their name")
    parser.add_argument(
        "--variants", nargs="*", type=Variant.parse, default=variants.ALL, help="such as script-2-float32"
    )
    parser.add_argument("--float16", nargs="*", default=(), help="scripts that run under mixed_float16 too")
    parser.add_argument("--results", type=Path, default=Path("build/keras-io.jsonl"), help="JSON lines, one a run")
    parser.add_argument("--again", action="store_true", help="repeat runs that failed")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a run may take (300)")
    parser.add_argument(
        "--packages", type=Path, help="a folder with pandas and matplotlib, as `pip install --target` makes"
    )
    parser.add_argument("--work", type=Path, help="where runs take place; kept. Default: a temporary folder")
    parser.add_argument("--write", type=Path, help="the document that the table goes into")
    given = parser.parse_args(arguments)
    found = scripts(given.folder, given.only)
    if not found:
        parser.error(f"{given.folder}: no scripts such as vision/mnist_convnet.py in it")
    given.results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        packages = given.packages.resolve() if given.packages else None
        work = (given.work or Path(temporary)).resolve()
        with Server(environ(Path(temporary), packages)) as server:
            _run_all(Bench(server, work, given.timeout, _commit()), found, given)
    done = read(given.results)
    if given.write:
        names = {each.name for each in scripts(given.folder)}
        done = {key: run for key, run in done.items() if key[0] in names}
        put(given.write, table.document(done), begin=table.BEGIN, end=table.END)
    faults = [run for run in done.values() if outcomes.of(run, done).kind is outcomes.Kind.OURS]
    for run in faults:
        print(f"{run.script} {run.variant}: {run.reason}: {run.message.splitlines()[0] if run.message else ''}")
    return int(bool(faults))


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def _run_all(bench: Bench, found: Sequence[Script], given: argparse.Namespace) -> None:
    done = read(given.results)
    # A variant of all scripts before the next one, short ones first, so that an interrupted table has whole columns.
    seconds = {script: run.seconds for (script, variant), run in done.items() if variant == str(PLAIN)}
    found = sorted(found, key=lambda script: (seconds.get(script.name, 0.0), script.name))
    chosen = [
        (script, variant)
        for variant in given.variants
        for script in found
        if variant != variants.SAMPLE or any(each in script.name for each in given.float16)
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(chosen))
        for script, variant in chosen:
            progress.update(bar, description=f"{script.name} {variant}")
            before = done.get((script.name, str(variant)))
            if before is None or (given.again and not before.succeeded):
                for run in _runs(bench, script, variant, done):
                    done[run.script, run.variant] = run
                    with given.results.open("a") as file:
                        print(run.line(), file=file)
            progress.advance(bar)


def _runs(bench: Bench, script: Script, variant: Variant, done: dict[tuple[str, str], Run]) -> list[Run]:
    """Run it; if the trainer fails with devices or a policy, run plain Keras with the same ones too, for comparison."""
    try:
        run = bench.run(script, variant, capture=variant == PLAIN)
    except NoFunction as why:
        return [Run(script.name, str(variant), 0, 0.0, outcomes.NO_FUNCTION, str(why))]
    if run.succeeded or variant.kind != "script" or run.reason == outcomes.TIMEOUT:
        return [run]
    missing = [each for each in outcomes.compared(run) if (script.name, str(each)) not in done]
    return [run, *(bench.run(script, each) for each in missing)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
