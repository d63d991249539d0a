"""Text of a new job file, with comments, from a few answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from mptraining_api.spec import API_VERSION, KIND

Kind = Literal["application", "function", "script"]
SCHEMA_FILE = "mptrainingjob.schema.json"


@dataclass(frozen=True)
class Answers:
    """The facts of a new job file; `program` is an application's name, a script, or module:function."""

    name: str
    kind: Kind
    program: str
    accelerator: str = "cpu"
    data: str = "records/train-*.tfrecord"
    validation: str | None = None
    label: str | None = None
    classes: int | None = None
    epochs: int = 5
    batch_size: int = 64
    run_folder: str | None = None


def job_text(answers: Answers) -> str:
    """Return the job file for these answers; everything that is not in it has a default that `mptj check` explains."""
    folder = json.dumps(answers.run_folder or f"gs://my-bucket/runs/{answers.name}")
    parts = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# Check it with: mptj check FILE. Train here with: mptj run FILE; on a cluster with: mptj submit FILE.
apiVersion: {API_VERSION}
kind: {KIND}
metadata: {{name: {answers.name}}}
spec:
  accelerator: {{type: {answers.accelerator}}}   # `mptj accelerators` lists the others
  # precision: {{policy: Auto}}    # follows the accelerator; mixed_float16, mixed_bfloat16, float32, Measure
  program:
    {_program(answers)}
"""
    if answers.kind != "script":
        validation = f"    validation: [{json.dumps(answers.validation)}]\n" if answers.validation else ""
        parts += f"""\
  data:
    train: [{json.dumps(answers.data)}]   # paths are relative to this file; or gs://bucket/…
{validation}\
    {"" if answers.label else "# "}label: {answers.label or "label"}   # absent: the manifest's
  training:
    epochs: {answers.epochs}
    batchSize: {{global: {answers.batch_size}}}   # over all replicas; or perReplica
    # optimizer: {{className: Adam, config: {{learning_rate: 0.001}}}}
    # loss: {{className: SparseCategoricalCrossentropy, config: {{from_logits: true}}}}
    # metrics: [{{className: SparseCategoricalAccuracy}}]
"""
    why = f"checkpoints, events, the model; here the default is runs/{answers.name}"
    return f"{parts}  {'' if answers.run_folder else '# '}output: {{uri: {folder}}}   # {why}\n"


def _program(answers: Answers) -> str:
    if answers.kind == "script":
        return f"script: {{path: {answers.program}}}   # its own model.fit trains"
    if answers.kind == "function":
        return f"function: {{entryPoint: {json.dumps(answers.program)}}}   # returns a keras.Model"
    classes = f", classes: {answers.classes}" if answers.classes else ""
    return f"application: {{name: {answers.program}{classes}}}   # any of keras.applications, mlp, cnn"
