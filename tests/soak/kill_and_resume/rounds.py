"""One run of the matrix: from its job to its digest, undisturbed or killed repeatedly and resumed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from mptraining_records.convert.convert import convert
from tests.jobs import resolved_job
from tests.soak.kill_and_resume import program
from tests.soak.kill_and_resume.faults import NO_FAULT, Fault, Mutation
from tests.testbed.forks import Fork, worker_environments

EXAMPLES, VALIDATION, BATCH, EPOCHS, SAVE_EVERY = 200, 30, 16, 4, 5
STEPS = EXAMPLES // BATCH * EPOCHS
PATIENCE = 600.0
# No kill point is in these last steps: one execution may have begun when the signal arrives, the next one checks it,
# and it must not be the last, after which nothing is left to interrupt. A checkpoint ends an execution.
_LAST_STEPS = 3 * SAVE_EVERY + 1


@dataclass(frozen=True)
class Configuration:
    """One cell of the matrix. `devices` is "one replica", "two replicas" or "two workers"."""

    policy: str
    devices: str
    keras: str = "Keras3"

    def __str__(self) -> str:
        return f"{self.policy}, {self.devices}" + (", tf_keras" if self.keras == "Legacy" else "")

    @property
    def workers(self) -> int:
        return 2 if self.devices == "two workers" else 1

    def spec(self) -> dict[str, Any]:
        accelerator: dict[str, Any] = {"type": "cpu"}
        if self.devices == "two replicas":
            accelerator["countPerWorker"] = 2
        # So large that the first steps overflow: the scale and its counters change.
        scale = {"lossScale": {"mode": "Dynamic", "value": 2.0**24}} if self.policy == "mixed_float16" else {}
        return {
            "accelerator": accelerator,
            "workers": self.workers,
            "keras": self.keras,
            "precision": {"policy": self.policy, **scale},
        }


@dataclass
class Round:
    """The result of one run: exit codes of each attempt's workers, and the digests of its run folder."""

    codes: list[list[int]] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def make_data(
    folder: Path,
    source: str = program.__file__,
    *,
    counts: tuple[int, int] = (EXAMPLES, VALIDATION),
    numbered: bool = False,
) -> None:
    """Write the records of all runs, the same every time, and the program's source beside them."""
    draw = np.random.default_rng(11)
    for name, count in zip(("train", "validation"), counts, strict=True):
        images = draw.normal(size=(count, 6, 6, 1)).astype(np.float32)
        labels = images.reshape(count, 3, -1).sum(axis=2).argmax(axis=1)
        columns: dict[str, Any] = {"image": images, "label": labels}
        if numbered:
            columns["number"] = np.arange(count)
        np.savez(folder / f"{name}.npz", **columns)
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    shutil.copy(source, folder)


def faults(configuration: Configuration, seed: int, kills: int) -> list[dict[int, Fault]]:
    """Return the workers' signals and their times for each attempt but the last: a pure function of the seed.

    Of several workers one is lost, or one gets SIGTERM, or all are killed at once.
    """
    draw = random.Random(f"{configuration} {seed}")
    steps = sorted(draw.randint(1, STEPS - _LAST_STEPS) for _ in range(kills))
    drawn = []
    for step in steps:
        kind = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        delay = draw.choice([0.0, draw.uniform(0, 0.01)])
        hit: Sequence[int] = range(configuration.workers)
        if kind is signal.SIGTERM or draw.random() < 0.5:
            hit = [draw.randrange(configuration.workers)]
        drawn.append({worker: Fault(kind, step, delay) for worker in hit})
    return drawn


def run(
    configuration: Configuration,
    data: Path,
    folder: Path,
    plan: Sequence[dict[int, Fault]] = (),
    *,
    seed: int = 0,
    mutation: Mutation = "",
) -> Round:
    """Train in `folder` through all attempts of the plan and one more, without faults."""
    done = Round()
    draw = random.Random(f"fused {configuration} {seed}")
    folder.mkdir(parents=True)
    for number, hit in enumerate([*plan, {}], start=1):
        # Steps are compared without the way in which they are fused.
        training = {"epochs": EPOCHS, "batchSize": {"global": BATCH}, "stepsPerExecution": draw.choice([1, 2, 3])}
        spec = configuration.spec() | {"program": {"function": {"entryPoint": "program:build"}}, "training": training}
        mutated = {worker: replace(hit.get(worker, NO_FAULT), mutation=mutation) for worker in range(2)}
        done.codes.append(attempt(spec, data, folder, number, mutated))
        done.kills += [f"{fault} of worker {worker}" for worker, fault in hit.items()]
        _expect(done.codes[-1], hit, folder, number)
    done.digests = digests(folder / "run")
    return done


def attempt(
    spec: dict[str, Any], data: Path, folder: Path, number: int, hit: dict[int, Fault], *, workers: int | None = None
) -> list[int]:
    """Train from the newest checkpoint to the end, or until the faults; return the exit codes of the workers."""
    sources: dict[str, Any] = {name: [f"{data}/{name}-*.tfrecord"] for name in ("train", "validation")}
    document = spec | {
        "data": sources | {"label": "label", "shuffle": {"bufferSize": 100}},
        "training": {"seed": 7} | spec["training"],
        "checkpoint": {"everySteps": SAVE_EVERY},
        "output": {"uri": str(folder / "run")},
    }
    environments = worker_environments(resolved_job("killed", **document), folder, number, source=data, workers=workers)
    forks = [Fork(*worker, hit.get(index, NO_FAULT)) for index, worker in enumerate(environments)]
    return [fork.wait(PATIENCE) for fork in forks]


def digests(run: Path) -> dict[str, str]:
    """Return the SHA-256 of each part of the run folder."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    parts = {path.stem: _of_arrays(load_file(path)) for path in sorted(newest.glob("*.safetensors"))}
    state = json.loads((newest / "state.json").read_text())
    # The writer, and the sizes of the files, may differ.
    told = {name: value for name, value in state.items() if name not in ("attempt", "incarnation", "files")}
    result = json.loads((run / "result.json").read_text())
    with np.load(run / "model" / "weights.npz") as exported:
        parts["export"] = _of_arrays(dict(exported))
    shown = {name: float(value).hex() for name, value in result["metrics"].items()}
    parts["state"] = _of_text(json.dumps(told, sort_keys=True))
    parts["shown metrics"] = _of_text(json.dumps([shown, result["step"], result["skippedSteps"]], sort_keys=True))
    return parts


def _expect(codes: list[int], hit: dict[int, Fault], folder: Path, number: int) -> None:
    """Raise when an attempt ended otherwise than its faults permit."""
    for worker, code in enumerate(codes):
        if not hit:
            allowed = {0}
        elif worker in hit and hit[worker].signal == signal.SIGKILL:
            allowed = {-signal.SIGKILL}
        elif any(fault.signal == signal.SIGTERM for fault in hit.values()):
            allowed = {75}
        else:
            allowed = {76}
        if code not in allowed:
            said = (folder / f"{number}-{worker}.err").read_text()[-2000:]
            last = (folder / f"{number}-{worker}.out").read_text().splitlines()[-3:]
            raise AssertionError(
                f"worker {worker} of attempt {number}, {hit}: {code} instead of {allowed}\n{said}\n{last}"
            )


def _of_arrays(arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
