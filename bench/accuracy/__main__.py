"""`python -m bench.accuracy`: the accuracy under mixed policies against float32. A part of `make soak`.

The same jobs under two policies, five seeds each, on scikit-learn's digits enlarged to 32x32x3: whole runs of the
trainer, held-out accuracy. The table is printed, and with --write goes into docs/precision.md between its markers.
float16 is emulated on a CPU, so that its nets are smaller.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.figures import progress
from mptraining_records.convert.convert import convert

PAGE = Path(__file__).parents[2] / "docs" / "precision.md"
BEGIN, END = "<!-- parity: made by `make soak` -->", "<!-- end of parity -->"
# Quantile 0.975 of Student's t by degrees of freedom.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
_TRAIN, _ENLARGED = 1437, 4


@dataclass(frozen=True)
class Trial:
    net: str
    width: int
    policy: str
    epochs: int


FULL = (
    *(Trial(net, 8, "mixed_bfloat16", 12) for net in ("mlp", "cnn", "resnet")),
    *(Trial(net, 4, "mixed_float16", 12) for net in ("mlp", "cnn", "resnet")),
)
QUICK = (Trial("mlp", 1, "mixed_bfloat16", 1),)


@dataclass(frozen=True)
class Parity:
    """Accuracies in percent by seed; `difference` is the policy's mean minus float32's, `half` half of its interval."""

    trial: Trial
    float32: tuple[float, ...]
    mixed: tuple[float, ...]

    @property
    def difference(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def half(self) -> float:
        """95%, by Student's t over the pairs of one seed, which begin with the same weights and order."""
        pairs = self.differences
        return _T[len(pairs) - 1] * statistics.stdev(pairs) / math.sqrt(len(pairs))

    @property
    def differences(self) -> list[float]:
        return [mixed - plain for mixed, plain in zip(self.mixed, self.float32, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny trial of two seeds: a test of the command")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        _data(Path(folder))
        for trial in QUICK if arguments.quick else FULL:
            found.append(_measured(trial, folder, seeds=2 if arguments.quick else 5))
            print(json.dumps(_line(found[-1])), flush=True)
    if arguments.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(found)), encoding="utf-8")


def table(found: Sequence[Parity]) -> str:
    """Return the table in Markdown, as percentages."""
    rows = [
        "| Net | Policy | float32 | under the policy | difference of means | 95% interval |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        plain, mixed = (f"{statistics.fmean(each):.2f}" for each in (one.float32, one.mixed))
        low, high = one.difference - one.half, one.difference + one.half
        name = f"{one.trial.net}, width {one.trial.width}"
        rows.append(
            f"| {name} | `{one.trial.policy}` | {plain} | {mixed} | {one.difference:+.2f} | {low:+.2f} to {high:+.2f} |"
        )
    seeds = len(found[0].float32)
    note = f"Held-out accuracy in percent after {found[0].trial.epochs} epochs, means of {seeds} seeds."
    return "\n".join([note, "", *rows])


def with_table(page: str, text: str) -> str:
    """Replace the table between the page's markers. Raises ValueError when they are missing."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:begin]}\n{text}\n{page[end:]}"


def _data(folder: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.round(digits.images / 16 * 255).astype(np.uint8)
    images = small.repeat(_ENLARGED, axis=1).repeat(_ENLARGED, axis=2)[..., np.newaxis].repeat(3, axis=3)
    order = np.random.default_rng(7).permutation(len(images))
    for name, rows in (("train", order[:_TRAIN]), ("held-out", order[_TRAIN:])):
        np.savez(folder / f"{name}.npz", image=images[rows], label=digits.target[rows].astype(np.int64))
        convert(str(folder / f"{name}.npz"), str(folder / "records"), name=name, keep_order=True)


def _measured(trial: Trial, folder: str, *, seeds: int) -> Parity:
    accuracies = {}
    for policy in ("float32", trial.policy):
        arguments = [folder, trial.net, str(trial.width), policy, str(trial.epochs), *map(str, range(seeds))]
        command = [sys.executable, "-m", "bench.accuracy.child", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        results = [json.loads(line) for line in done.stdout.splitlines()]
        accuracies[policy] = tuple(100 * one["accuracy"] for one in results)
        seconds = sum(one["seconds"] for one in results)
        progress(f"{trial.net} {trial.width} {policy}: {accuracies[policy]} in {seconds:.0f} s")
    return Parity(trial, accuracies["float32"], accuracies[trial.policy])


def _line(one: Parity) -> dict[str, object]:
    return {
        "name": f"parity.{one.trial.net}.{one.trial.policy}.accuracy_difference",
        "value": round(one.difference, 3),
        "unit": "percentage points",
        "against": "float32",
        "interval": [round(one.difference - one.half, 3), round(one.difference + one.half, 3)],
        "seeds": len(one.float32),
    }


if __name__ == "__main__":
    main()
