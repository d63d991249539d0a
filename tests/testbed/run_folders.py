"""Run folders, each with a story: finished, under way, diverged, interrupted and resumed. Seeded, nothing trains."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining_api import run_folder
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import Result
from tests.jobs import resolved_job
from tests.testbed.stub_trainer import RESULT


@dataclass(frozen=True)
class Story:
    """What a run was and how it went; `steps` in all, `at` the step at which it ends, is or was interrupted."""

    name: str
    policy: str = "mixed_float16"
    accelerator: str = "t4"
    count: int = 2
    jit_compile: str = "Always"
    optimizer: str = "Adam"
    learning_rate: float = 0.001
    batch_size: int = 256
    epochs: int = 12
    seed: int = 7
    step_seconds: float = 0.21
    steps: int = 3600
    ends: str = "Succeeded"
    at: int | None = None
    resumes: bool = False


class RunFolder:
    """Writes one run step by step, as a trainer does: `begin`, `advance`, `end`. The clock is the story's own."""

    def __init__(self, folder: Path, story: Story, *, start: float) -> None:
        self.folder = folder
        self.story = story
        self.time = start
        self.attempt = 1
        self.step = 0
        self.draw = random.Random(story.name)
        self.validation: dict[str, float] = {}
        for name in (run_folder.EVENTS, "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / run_folder.JOB).write_text(_job(story).to_json())

    @property
    def per_epoch(self) -> int:
        return self.story.steps // self.story.epochs

    def begin(self, first_step: int = 0) -> None:
        """Write the Started event of an attempt that continues from `first_step`."""
        self.step = first_step
        self._print(
            "starting TensorFlow 2.21.0", f"strategy: Mirrored over {self.story.count} x {self.story.accelerator}"
        )
        self._event(
            "Started", strategy="Mirrored", precision=self.story.policy, keras="Keras3", tensorflow="2.21.0",
            devices=[f"/gpu:{index}" for index in range(self.story.count)], workers=1,
            replicasInSync=self.story.count, globalBatchSize=self.story.batch_size, totalSteps=self.story.steps,
            stepsPerEpoch=self.per_epoch, firstStep=first_step, parameters=23_769_000, trainExamples=76_800,
        )  # fmt: skip

    def advance(self, to: int, every: int = 20) -> None:
        """Train to step `to`: Progress each `every` steps, validation and a checkpoint at the end of each epoch."""
        while self.step < to:
            self.step = min(to, self.step + every)
            self.time += every * self.story.step_seconds
            ended = self.step % self.per_epoch == 0
            metrics = self._metrics(validation=ended)
            self._event("Progress", **self._gauges(), metrics=metrics)
            if ended:
                values = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
                self._print(f"epoch {self._epoch()}/{self.story.epochs}: {values}")
                uri = f"checkpoints/{self.step}"
                self._event("Saved", step=self.step, uri=uri, bytes=285_300_000, seconds=2.4)

    def interrupt(self, reason: str, message: str, exit_code: int, *, idle: float = 95.0) -> None:
        """End the attempt; the next one begins `idle` seconds later."""
        self._event("Finished", reason=reason, exitCode=exit_code, message=message, step=self.step)
        self.attempt += 1
        self.time += idle

    def end(self, reason: str = "Succeeded", message: str = "", exit_code: int = 0) -> None:
        metrics = self._metrics(validation=False)
        self._event("Finished", reason=reason, exitCode=exit_code, message=message, step=self.step, metrics=metrics)
        self._print(f"{reason}: {message}" if message else "training finished")
        seconds = self.step * self.story.step_seconds
        result = RESULT | {
            "name": self.story.name, "reason": reason, "exit_code": exit_code, "message": message,
            "attempt": self.attempt, "step": self.step, "metrics": metrics, "precision": self.story.policy,
            "replicas_in_sync": self.story.count, "global_batch_size": self.story.batch_size,
            "step_seconds": self.story.step_seconds, "training_seconds": seconds, "seconds": seconds + 41,
            "examples_per_second": self.story.batch_size / self.story.step_seconds,
        }  # fmt: skip
        (self.folder / run_folder.RESULT).write_text(Result(**result).to_json(), encoding="utf-8")

    def notice(self, topic: str, message: str, level: str = "Warning") -> None:
        self._event("Notice", level=level, topic=topic, message=message)

    def _epoch(self) -> int:
        return 1 + (self.step - 1) // self.per_epoch

    def _loss(self) -> float:
        """A curve that falls as a power of the step; too high a learning rate ends on a worse plateau."""
        rate = self.story.learning_rate / (0.001 if self.story.optimizer == "Adam" else 0.1)
        off = abs(math.log10(rate))
        floor = 0.09 + 0.22 * off
        done = self.step / self.story.steps
        return floor + 4.5 * math.exp(-(9 - 1.8 * off) * done**0.72)

    def _metrics(self, *, validation: bool) -> dict[str, float]:
        loss = self._loss() * math.exp(self.draw.gauss(0, 0.07))
        if self.story.ends == "Diverged" and self.story.at is not None and self.step > 0.92 * self.story.at:
            loss = 10.0 ** (11.2 * (self.step - 0.92 * self.story.at) / (0.08 * self.story.at))
        found = {"loss": loss, "accuracy": min(0.999, math.exp(-loss * 0.62))}
        if validation:
            late = 0.16 * (self.step / self.story.steps) ** 2
            held = self._loss() + 0.11 + late + self.draw.gauss(0, 0.015)
            self.validation = {"val_loss": held, "val_accuracy": math.exp(-held * 0.62)}
        # As the trainer does: until the next validation each Progress repeats the last one.
        return found | self.validation

    def _gauges(self) -> dict[str, Any]:
        story, wobble = self.story, self.draw.gauss
        found: dict[str, Any] = {
            "step": self.step, "totalSteps": story.steps, "epoch": self._epoch(),
            "examplesPerSecond": story.batch_size / story.step_seconds * (1 + wobble(0, 0.02)),
            "stepSeconds": story.step_seconds * (1 + wobble(0, 0.02)),
            "estimatedRemainingSeconds": (story.steps - self.step) * story.step_seconds,
            "inputBoundPercent": max(0.0, 3 + wobble(0, 1.5)), "learningRate": story.learning_rate,
            "gradientNorm": 2.2 * self._loss() ** 0.7 * math.exp(wobble(0, 0.25)), "precision": story.policy,
            "recoveries": 0, "deviceMemoryPeakBytes": 5_100_000_000, "deviceMemoryTotalBytes": 16_100_000_000,
            "deviceUtilizationPercent": min(100.0, 81 + wobble(0, 4)), "cpuPercent": max(1.0, 46 + wobble(0, 5)),
        }  # fmt: skip
        if story.policy == "mixed_float16":
            found |= {"lossScale": 32768.0 * 2 ** min(4, self.step // 700), "skippedSteps": min(4, self.step // 700)}
        return found

    def _event(self, kind: str, **fields: Any) -> None:
        head = {"mptraining": 1, "time": self.time, "attempt": self.attempt, "incarnation": "pod", "worker": 0}
        path = self.folder / run_folder.events_file(self.attempt, "pod", 0, 0)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(head | {"kind": kind} | fields) + "\n")

    def _print(self, *lines: str) -> None:
        with (self.folder / "logs" / f"{self.attempt}-pod-0.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def _job(story: Story) -> ResolvedJob:
    optimizer = {"className": story.optimizer, "config": {"learning_rate": story.learning_rate}}
    return resolved_job(
        story.name,
        accelerator={"type": story.accelerator, "countPerWorker": story.count},
        precision={"policy": story.policy},
        jitCompile=story.jit_compile,
        data={name: [f"gs://flowers/{name}-*.tfrecord"] for name in ("train", "validation")},
        training={
            "epochs": story.epochs,
            "batchSize": {"global": story.batch_size},
            "seed": story.seed,
            "optimizer": optimizer,
            "metrics": [{"className": "SparseCategoricalAccuracy", "config": {"name": "accuracy"}}],
        },
    )


def write_story(folder: Path, story: Story, *, start: float, every: int = 20) -> RunFolder:
    """Write the whole of a story that ends before its last event is `start` plus its duration."""
    run = RunFolder(folder, story, start=start)
    run.begin()
    if story.resumes:
        run.advance(int(0.43 * story.steps), every)
        run.interrupt("Preempted", "node gke-spot-3 was taken away", 75)
        run.begin(int(0.43 * story.steps) // run.per_epoch * run.per_epoch)
    run.advance(story.at or story.steps, every)
    if story.ends == "Diverged":
        where = "the first values that are not are of layer 'conv4_block2_out'"
        message = f"the loss is not finite at step {story.at}: {where}. Use a smaller learning rate, or clipnorm."
        run.notice("NonFinite", message)
        run.end("Diverged", message, 3)
    elif story.ends == "Succeeded":
        run.end()
    return run


def flowers() -> list[Story]:
    """Return the stories of twelve runs: a sweep of learning rates, policies and XLA, as one compares them."""
    return [
        Story("float32", policy="float32", step_seconds=0.43, jit_compile="Never"),
        Story("float32-xla", policy="float32", step_seconds=0.37),
        Story("fp16", step_seconds=0.24, jit_compile="Never"),
        Story("fp16-xla", step_seconds=0.18),
        Story("fp16-xla-seed-8", step_seconds=0.18, seed=8),
        Story("fp16-resumed", step_seconds=0.18, resumes=True, seed=9),
        Story("fp16-lr-3e-3", learning_rate=0.003, step_seconds=0.18),
        Story("fp16-lr-1e-2", learning_rate=0.01, step_seconds=0.18),
        Story("fp16-lr-1e-4", learning_rate=0.0001, step_seconds=0.18),
        Story("fp16-sgd", optimizer="SGD", learning_rate=0.1, step_seconds=0.175),
        Story("fp16-batch-512", batch_size=512, step_seconds=0.34, learning_rate=0.002),
        Story("fp16-lr-1e-1", learning_rate=0.1, step_seconds=0.18, ends="Diverged", at=640),
    ]
