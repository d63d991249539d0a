"""`python -m hardware`: measures this machine's accelerator and writes docs/hardware.md. `make hardware`.

Without a GPU or TPU it measures small models on the CPU, which shows that the program works. Results are kept in
build/hardware; the same command continues a run that was killed, and with more --minutes one that had no time left.
The page lists what was left out for lack of time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from hardware.cells import Scale
from hardware.machine import Machine
from hardware.measure import ROOT, Worker, measure
from hardware.page import write_page
from hardware.results import Results, differences, load, save, without_failures
from hardware.schedule import next_turn
from mptraining_records.storage import storage

# An hour has room for one pass (tests/hardware/test_schedule.py); a CPU shows in minutes that the program works.
_MINUTES = {"full": 60.0, "small": 6.0}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hardware", description=__doc__)
    parser.add_argument("--minutes", type=float, metavar="N", help="time for all measurements: 60, on a CPU 6")
    parser.add_argument("--small", action="store_true", help="small models on an accelerator too: a test")
    parser.add_argument("--retry-failed", action="store_true", help="measure what failed once more")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "hardware", help="for results and records")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "hardware.md", help="the page to write")
    parser.add_argument("--publish", metavar="URI", help="keep the results there too, and continue from there")
    arguments = parser.parse_args()
    # As an exception, so that the process of the current measurement is ended and does not keep the device.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    file = arguments.folder / "results.json"
    if arguments.publish and not file.exists() and storage.exists(arguments.publish):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(storage.read(arguments.publish))
    results = _begin(file, small=arguments.small, restart=bool(arguments.publish))
    if arguments.retry_failed:
        results = without_failures(results)
    results = run(results, file, 60 * (arguments.minutes or _MINUTES[results.scale]), publish=arguments.publish)
    for written in write_page(results, arguments.page):
        print(written)


def run(results: Results, file: Path, seconds: float, *, publish: str | None = None) -> Results:
    """Measure until all is done or no measurement fits into the time, that of earlier runs included."""
    with Worker() as worker:
        while (turn := next_turn(results, seconds - results.seconds)) is not None:
            machine = results.machine.to_json()
            one = measure(turn, results, file.parent, worker)
            one = replace(one, host={name: machine[name] for name in ("cpu", "cores", "memory", "driver")})
            results = results.with_round(one)
            save(results, file)
            if publish:
                storage.write(publish, file.read_bytes())
            speed = one.values.get("examples_per_second")
            found = f"{speed:,.0f} examples/s" if speed else one.message or one.outcome
            left = (seconds - results.seconds) / 60
            line = f"{turn.cell.key} round {turn.round + 1}: {found} ({one.seconds:.0f} s, {left:.0f} min left)"
            print(line, flush=True)
    return results


def _begin(file: Path, *, small: bool, restart: bool) -> Results:
    """Return the results to continue, or empty ones.

    Exits if they are not of this machine; with `restart` the run starts over: a job has no one to answer.
    """
    machine = _machine()
    scale: Scale = "small" if small or machine.kind == "cpu" else "full"
    empty = Results(machine, scale, datetime.datetime.now(datetime.UTC).date().isoformat())
    if not file.exists():
        return empty
    try:
        before = load(file.read_text(encoding="utf-8"), str(file))
    except (ValueError, TypeError, KeyError) as error:
        if restart:
            print(f"starting over: {error}", flush=True)
            return empty
        sys.exit(f"{file}: {error}")
    other = differences(before.machine, machine)
    if before.scale != scale:
        other.append(f"sizes: {before.scale} then, {scale} now")
    if other and restart:
        print(f"starting over: the results so far are of another machine ({'; '.join(other)})", flush=True)
        return empty
    if other:
        sys.exit(f"{file} has figures of another machine ({'; '.join(other)}): give another --folder, or delete it")
    print(f"continuing {file}: {len(before.rounds)} measurements so far")
    return replace(before, machine=machine)


def _machine() -> Machine:
    command = [sys.executable, "-m", "hardware.machine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the machine's devices cannot be read:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return sys.exit(answer["fault"]) if "fault" in answer else Machine(**answer)


if __name__ == "__main__":
    main()
