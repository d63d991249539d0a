"""Four walks through the product, with each value on the way: the shortest description of the whole system.

Each walk imports, inside its test, the product files that a reader opens to follow it: at most twelve.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_operator.runtime.values import Key
from tests.fakes import with_image
from tests.jobs import parsed_job

MOST_FILES = 12
ROOT = Path(__file__).parents[2]
YAML = """
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: shapes}
spec:
  accelerator: {type: t4, countPerWorker: 4}
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
    command = [sys.executable, "-m", "mptraining", "records", "convert", str(folder / "points.npz"), str(folder)]
    subprocess.run([*command, "--validation-fraction", "0.2", "--seed", "1"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def two_devices() -> None:
    """Logical CPU devices, where no conftest has made them; to be set before TensorFlow's first operation."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    if not tf.config.get_logical_device_configuration(cpu):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def test_from_yaml_to_pods() -> None:
    from mptraining_api import launch
    from mptraining_api.resolve.resolve import ClusterSettings, resolve
    from mptraining_api.resolved_job import ResolvedJob
    from mptraining_api.status import JobStatus
    from mptraining_operator.jobs.plan.plan import plan
    from mptraining_operator.jobs.plan.snapshot import Limits, Snapshot
    from mptraining_operator.jobs.resources.environment import PodSettings
    from mptraining_operator.jobs.resources.indexed_job import indexed_job
    from mptraining_operator.jobs.resources.job_objects import Owner, config_map, job_digest

    # The user writes intent only.
    job = parsed_job(YAML.replace("DATA", "gs://b/shapes").replace("OUTPUT", "gs://b/run"))
    assert job.spec.accelerator.type == "t4"
    assert (job.spec.precision, job.spec.strategy) == (None, None)

    # `resolve` decides every default, with a reason.
    resolved = resolve(job, ClusterSettings(runtimes=with_image("mptraining/trainer:walk")))
    assert (resolved.strategy, resolved.replicas, resolved.precision.policy) == ("Mirrored", 4, "mixed_float16")
    assert (resolved.global_batch_size, resolved.learning_rate.factor) == (32, 4.0)
    assert resolved.placement.node_selector == {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    assert resolved.placement.resources == {"nvidia.com/gpu": 4}
    assert all(choice.because for choice in resolved.choices)

    # `plan` asks for an attempt; the status is written when its workers run.
    snapshot = Snapshot(
        key=Key("team", "shapes"),
        uid="uid-1",
        generation=1,
        created=0.0,
        job=job,
        status=JobStatus(),
        limits=Limits(cluster=ClusterSettings(runtimes=with_image("mptraining/trainer:walk"))),
    )
    planned = plan(snapshot, now=60.0)
    assert planned.status is not None
    assert (planned.status.current_attempt, planned.actions) == (1, ())
    assert planned.status.job_digest == job_digest(planned.job_text)
    assert ResolvedJob.read(planned.job_text) == resolved

    # The objects of the attempt: the ConfigMap of the resolved job, and an Indexed Job whose pods mount it.
    owner = Owner("team", "shapes", "uid-1", "2026-11-23T10:00:00Z")
    mounted = config_map(owner, planned.job_text)["metadata"]["name"]
    batch_job = indexed_job(owner, resolved, attempt=1, settings=PodSettings())
    assert batch_job["spec"]["template"]["spec"]["volumes"][0]["configMap"] == {"name": mounted}
    assert batch_job["metadata"]["name"] == "shapes-1"
    assert (batch_job["spec"]["completions"], batch_job["spec"]["completionMode"]) == (1, "Indexed")
    (container,) = batch_job["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == ("mptraining/trainer:walk", list(launch.COMMAND))
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables[launch.HOSTS] == "shapes-1-0.mptraining-workers.team.svc:2222"


def test_from_yaml_to_the_exit_code_of_a_local_run(data: Path, tmp_path: Path) -> None:
    from mptraining.display.summary import RunSummary
    from mptraining.job_file.paths import with_absolute_paths
    from mptraining.local.outcome import Timeouts, final_text, verdict
    from mptraining.local.processes import Worker, run_gang
    from mptraining.local.runner import worker_environment
    from mptraining_api import events, outcomes, run_folder
    from mptraining_api.launch import launch
    from mptraining_api.resolve.resolve import ClusterSettings, resolve
    from mptraining_api.resolved_job import ResolvedJob

    # The job file, with its paths made absolute; without GPUs the CPU takes their place, at the same batch size.
    output = tmp_path / "run"
    written = parsed_job(YAML.replace("DATA", data.name).replace("OUTPUT", str(output)))
    job = resolve(
        with_absolute_paths(written, folder=data.parent, default_output=str(output)), ClusterSettings(cpu_fallback=True)
    )
    assert (job.strategy, job.replicas, job.precision.policy) == ("Mirrored", 2, "float32")
    assert job.global_batch_size == resolve(written, ClusterSettings()).global_batch_size
    assert any("FellBackToCPU" in choice.because for choice in job.choices)

    # One command, one environment and one job file; a worker's index is all that differs.
    file = tmp_path / "job.json"
    command = (sys.executable, "-m", "mptraining_trainer", "train")
    started = launch(job, hosts=["127.0.0.1:2222"], job_path=str(file), attempt=1, command=command)
    file.write_text(started.job_file)
    environment = worker_environment(
        started, 0, inherited=dict(os.environ), incarnation="walk", folder=tmp_path, gpus=None
    )

    # The worker process and its Events.
    lines: list[str] = []
    end = run_gang(
        [Worker(0, tuple(started.command), environment)],
        on_line=lambda _worker, stream, text: lines.append(text) if stream == "stdout" else None,
        on_stop=lambda _number: None,
        timeouts=Timeouts(),
    )
    heard = [event for event in map(events.parse, lines) if event is not None]
    first, last = heard[0], heard[-1]
    assert isinstance(first, events.Started)
    assert (first.replicas_in_sync, first.steps_per_execution, first.cache) == (2, 3, "Memory")
    assert first.train_examples is not None
    steps = first.train_examples // 32 * 4
    assert first.total_steps == steps
    assert isinstance(last, events.Finished)
    assert (last.reason, last.exit_code, last.step) == ("Succeeded", 0, steps)

    # The exit code and the last lines.
    summary = RunSummary()
    for event in heard:
        summary.add(0, event)
    decided = verdict(end)
    assert decided.exit_code == outcomes.SUCCEEDED.exit_code
    lines = final_text(summary, end, decided, command="mptj run job.yaml", folder=str(output))[0]
    assert lines[0].startswith(f"Succeeded: {steps} steps")

    # The run folder, from which everything else is read.
    assert ResolvedJob.read((output / run_folder.JOB).read_bytes()) == job
    result = run_folder.Result.read((output / run_folder.RESULT).read_bytes())
    assert (result.reason, result.step, result.precision) == ("Succeeded", steps, "float32")
    assert result.metrics["val_accuracy"] > 0.9

    # The model, in a process that knows Keras alone.
    about = json.loads((output / run_folder.MODEL / "model.json").read_text())
    assert about["classes"] == ["circle", "square", "star"]
    program = (
        "import sys, keras, numpy; print(keras.models.load_model(sys.argv[1])(numpy.eye(3) * 4).numpy().argmax(1))"
    )
    alone = subprocess.run(
        [sys.executable, "-c", program, str(output / "model" / "model.keras")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert alone.stdout.strip() == "[0 1 2]"


@pytest.mark.usefixtures("two_devices")
def test_one_record_from_bytes_to_a_tensor(tmp_path: Path) -> None:
    import tensorflow as tf

    from mptraining_api.resolve.resolve import ClusterSettings, resolve
    from mptraining_records.index import dataset_index
    from mptraining_records.reading.order import Order
    from mptraining_records.reading.reader import RecordReader
    from mptraining_records.tfrecord import example, framing
    from mptraining_trainer.data.decode import decoder
    from mptraining_trainer.data.schema import decide_columns

    # Five records in two files, as TensorFlow writes and reads them.
    records = [example.encode({"point": [float(number), 0.5], "label": [number]}) for number in range(5)]
    for name, some in (("a", records[:2]), ("b", records[2:])):
        (tmp_path / f"{name}.tfrecord").write_bytes(b"".join(map(framing.encode, some)))
    assert list(tf.data.TFRecordDataset(str(tmp_path / "b.tfrecord")).as_numpy_iterator()) == records[2:]

    # The position of every record.
    dataset = dataset_index.build([str(tmp_path / "*.tfrecord")])
    assert dataset.count == 5
    shards, rows = dataset.locate(np.arange(5))
    assert (shards.tolist(), rows.tolist()) == ([0, 0, 1, 1, 1], [0, 1, 0, 1, 2])

    # The order of an epoch is a function of seed, epoch and position.
    order = Order(5, seed=7)
    numbers = order.records(0, np.arange(5))
    assert sorted(numbers.tolist()) == [0, 1, 2, 3, 4]
    assert numbers.tolist() != order.records(1, np.arange(5)).tolist()

    # Their bytes, with checksums verified.
    with RecordReader(dataset) as reader:
        payloads = reader.read(numbers)
    assert payloads == [records[number] for number in numbers]

    # The columns, and the tensors of a batch.
    job = resolve(parsed_job(YAML), ClusterSettings())
    assert job.data is not None
    columns = decide_columns(job.data, None, records, lambda _text: None)
    assert set(columns.describe()) == {"point: float32 [2]", "label: int64 [] (label)"}
    inputs, labels, weights = decoder(columns)(tf.constant(payloads))
    assert labels.numpy().tolist() == numbers.tolist()
    assert inputs.numpy().tolist() == [[float(number), 0.5] for number in numbers]
    assert weights == ()


@pytest.mark.usefixtures("two_devices")
def test_one_attempt_from_start_to_export(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    from mptraining_api.launch import WorkerIdentity
    from mptraining_api.resolve.resolve import ClusterSettings, resolve
    from mptraining_trainer import run, train
    from mptraining_trainer.checkpoints.checkpoint import Checkpointer
    from mptraining_trainer.devices.preemption import Preemption
    from mptraining_trainer.export import export
    from mptraining_trainer.model import program
    from mptraining_trainer.session.fit import FitLoop
    from mptraining_trainer.step.train_loop import Loop

    # The devices of this process are fixed already.
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.setattr(train, "make_strategy", lambda *_: two)

    # Every value on the way is kept by the function that returns it.
    values: list[tuple[str, Any]] = []

    def kept(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            value = function(*arguments, **named)
            values.append((name, value))
            return value

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (train, "make_strategy"),
        (train, "open_splits"),
        (program, "build"),
        (train, "assemble"),
        (Loop, "execute"),
        (Checkpointer, "_write"),
        (FitLoop, "run"),
        (export, "export"),
        (run, "train"),
    ):
        kept(owner, name)

    output = str(tmp_path / "run")
    text = YAML.replace("DATA", str(data)).replace("OUTPUT", output)
    job = resolve(parsed_job(text), ClusterSettings(cpu_fallback=True))
    identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="walk")
    outcome = run.run(job, identity, output, Preemption(lambda: None), {})

    # Devices, data, model, loop; then executions of up to three steps each, with a checkpoint every ten.
    found: dict[str, list[Any]] = {}
    for name, value in values:
        found.setdefault(name, []).append(value)
    assert outcome.exit_code == 0
    assert found["make_strategy"][0].num_replicas_in_sync == job.replicas == 2
    assert found["open_splits"][0].training.count + found["open_splits"][0].validation.count == 200
    assert found["assemble"][0].program is found["build"][0]
    trained = found["train"][0]
    assert sum(execution.applied_steps for execution in found["execute"]) == trained.step == 20
    assert len(found["_write"]) == 2
    assert found["run"][0] == trained.metrics
    assert Path(output, trained.model).is_dir()
    order = [name for name, _ in values if name != "_write"]
    assert order == [*order[:4], *["execute"] * len(found["execute"]), "run", "export", "train"]


def test_each_walk_goes_through_at_most_twelve_files() -> None:
    walks = {
        test.name: {
            name
            for node in ast.walk(test)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mptraining")
            for name in modules_of(node)
        }
        for test in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
        if isinstance(test, ast.FunctionDef) and test.name.startswith(("test_from", "test_one"))
    }
    assert len(walks) == 4
    assert {name: len(files) for name, files in walks.items() if not 0 < len(files) <= MOST_FILES} == {}


def modules_of(node: ast.ImportFrom) -> set[str]:
    """The files that an import statement names."""
    below = {f"{node.module}.{alias.name}" for alias in node.names}
    return {name if is_module(name) else str(node.module) for name in below}


def is_module(name: str) -> bool:
    file = f"{name.replace('.', '/')}.py"
    return any((ROOT / part / file).exists() for part in ("api", "operator", "trainer", "client"))
