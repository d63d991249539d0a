"""One job from YAML to model, each value on the way looked at: the shortest description of the whole system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mptraining_api import events, launch, outcomes, run_folder
from mptraining_api.events import Event, Finished, Progress, Saved, Started
from mptraining_api.launch import Launch, WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus
from mptraining_operator.plan.actions import StartAttempt
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.resources.indexed_job import indexed_job
from mptraining_operator.resources.shared import Owner, config_map
from mptraining_records.convert.convert import convert
from mptraining_records.storage.storage import list_objects

YAML = """
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: shapes}
spec:
  accelerator: {type: nvidia-tesla-t4, countPerNode: 4}
  program: {application: {name: mlp}}
  data: {train: ["DATA/train-*.tfrecord"], validation: ["DATA/validation-*.tfrecord"]}
  training:
    epochs: 4
    batchSize: {perReplica: 8}
    optimizer: {className: SGD, config: {learning_rate: 0.05}}
    learningRateScaling: {rule: Linear, baseBatchSize: 8}
    stepsPerExecution: 3
    seed: 5
  checkpoint: {everySteps: 10, maxToKeep: 2}
  output: {uri: OUTPUT}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 points in three clouds, a fifth of them for validation."""
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(3)
    labels = numbers.integers(0, 3, 200)
    names = np.array(["circle", "square", "star"])[labels]
    points = (np.eye(3)[labels] * 4 + numbers.normal(size=(200, 3))).astype(np.float32)
    np.savez(folder / "points.npz", point=points, label=names)
    convert(str(folder / "points.npz"), str(folder), validation_fraction=0.2, seed=1)
    return folder


@pytest.mark.training
def test_one_job_from_yaml_to_model(data: Path, tmp_path: Path) -> None:
    # What the user wrote: intent only.
    output = tmp_path / "run"
    job = MPTrainingJob.parse_yaml(YAML.replace("DATA", str(data)).replace("OUTPUT", str(output)))
    assert job.spec.accelerator.type == "nvidia-tesla-t4"
    assert job.spec.precision is None
    assert job.spec.strategy is None
    assert job.spec.data is not None
    assert job.spec.data.shuffle is None

    # Every default decided, each with its reason: on a cluster with the GPUs, and on one without.
    on_gpus = resolve(job, ClusterSettings())
    assert (on_gpus.strategy, on_gpus.replicas, on_gpus.precision.policy) == ("Mirrored", 4, "mixed_float16")
    assert (on_gpus.global_batch_size, on_gpus.learning_rate.factor) == (32, 4.0)
    assert on_gpus.placement.node_selector == {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    assert on_gpus.placement.resources == {"nvidia.com/gpu": 4}

    resolved = resolve(job, ClusterSettings(cpu_fallback=True))
    assert (resolved.strategy, resolved.replicas, resolved.precision.policy) == ("Mirrored", 2, "float32")
    assert resolved.global_batch_size == on_gpus.global_batch_size, "the job is the same, the devices are not"
    assert resolved.accelerator.asked_for == "nvidia-tesla-t4"
    assert resolved.placement.resources == {}
    assert any("FellBackToCPU" in choice.because for choice in resolved.choices)

    # What the operator makes of it: the intent in the status, then the children, named and owned.
    seen = Snapshot(
        key=Key("team", "shapes"),
        uid="uid-1",
        generation=1,
        created=0.0,
        job=job,
        status=JobStatus(),
        limits=Limits(cluster=ClusterSettings(cpu_fallback=True, default_image="mptraining/trainer:walk")),
    )
    planned = plan(seen, now=60.0)
    assert planned.status is not None
    assert (planned.status.phase, planned.status.current_attempt, planned.status.strategy) == ("Pending", 1, "Mirrored")
    (start,) = planned.actions
    assert isinstance(start, StartAttempt)
    assert start.job == resolved.model_copy(update={"image": "mptraining/trainer:walk"})
    owner = Owner("team", "shapes", "uid-1")
    kept = config_map(owner, start.job)
    assert (kept["metadata"]["name"], kept["immutable"]) == ("shapes-job", True)
    assert ResolvedJob.read(kept["data"]["job.json"]) == start.job
    batch_job = indexed_job(owner, start.job, job.spec, attempt=1, settings=PodSettings())
    assert batch_job["metadata"]["name"] == "shapes-1"
    assert (batch_job["spec"]["completions"], batch_job["spec"]["completionMode"]) == (1, "Indexed")
    (container,) = batch_job["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == ("mptraining/trainer:walk", list(launch.COMMAND))
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables[launch.HOSTS] == "shapes-1-0.shapes-workers.team.svc:2222"

    # What is started: one command, one environment, one file; a process learns from its index who it is.
    job_file = tmp_path / "job.json"
    started: Launch = launch.launch(
        resolved,
        hosts=["127.0.0.1:2222"],
        job_path=str(job_file),
        attempt=1,
        command=[sys.executable, *launch.COMMAND[1:]],
    )
    job_file.write_text(started.job_file)
    assert ResolvedJob.read(started.job_file) == resolved
    environment = {**os.environ, **started.environment, launch.INDEX: "0", launch.INCARNATION: "walk"}
    identity = WorkerIdentity.from_environment(environment)
    assert (identity.index, identity.attempt, identity.incarnation, identity.is_chief) == (0, 1, "walk", True)

    # What it says while it works.
    done = subprocess.run(started.command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == outcomes.SUCCEEDED.exit_code, done.stderr
    said = [event for event in map(events.parse, done.stdout.splitlines()) if event is not None]
    first = next(event for event in said if isinstance(event, Started))
    assert (first.replicas_in_sync, first.steps_per_execution, first.cache) == (2, 3, "Memory")
    assert first.train_examples is not None
    assert first.validation_examples is not None
    assert first.train_examples + first.validation_examples == 200
    steps = first.train_examples // 32 * 4
    assert first.total_steps == steps
    assert set(first.features) == {"point: float32 [3]", "label: int64 [] (label)"}
    validated = [event for event in said if isinstance(event, Progress) and "val_loss" in event.metrics]
    assert [event.epoch for event in validated] == [1, 2, 3, 4]
    assert validated[-1].metrics["val_loss"] < validated[0].metrics["val_loss"]
    assert [event.step for event in said if isinstance(event, Saved)] == [10, steps]
    last = said[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.exit_code, last.step) == ("Succeeded", 0, steps)

    # What is left: the run folder, from which everything else is read.
    below = sorted({Path(found.uri).relative_to(output).parts[0] for found in list_objects(str(output))})
    assert below == ["checkpoints", "events", "job.json", "model", "result.json"]
    assert ResolvedJob.read((output / run_folder.JOB).read_bytes()) == resolved
    kept = events_in(output / run_folder.events_file(1, "walk", 0, 0))
    assert kept == said
    result = run_folder.Result.read((output / run_folder.RESULT).read_bytes())
    assert (result.reason, result.step, result.precision) == ("Succeeded", steps, "float32")
    assert result.metrics["val_accuracy"] == validated[-1].metrics["val_accuracy"] > 0.9

    # The model, in a process that knows Keras alone.
    about = json.loads((output / run_folder.MODEL / "model.json").read_text())
    assert about["classes"] == ["circle", "square", "star"]
    program = (
        "import sys, keras, numpy; print(keras.models.load_model(sys.argv[1])(numpy.eye(3) * 4).numpy().argmax(1))"
    )
    command = [sys.executable, "-c", program, str(output / "model" / "model.keras")]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert alone.stdout.strip() == "[0 1 2]"


def events_in(path: Path) -> list[Event]:
    return [event for event in map(events.parse, path.read_text().splitlines()) if event is not None]
