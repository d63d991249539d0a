"""Wrong sweeps: every mistake at once, at its field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.validation.yaml_text import read_yaml
from tests.unit.api.sweep.sweeps import JOB, POLICY, RATE, WIDTH, document

ISSUE = """
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingSweep
metadata: {name: digits}
spec:
  objective: {metric: val_accuracy, direction: Maximize}
  algorithm: {name: TPE, seed: 7}
  parameters:
    - {path: training.optimizer.config.learning_rate, logUniform: {low: 1e-5, high: 1e-1}}
    - {path: training.batchSize.global, values: [64, 128, 256]}
    - {path: precision.policy, values: [float32, mixed_bfloat16]}
    - {path: program.function.arguments.width, int: {low: 32, high: 512, step: 32}}
  trials: {max: 50, parallel: 4, maxFailed: 5}
  stop: {earlyStopping: {rule: Hyperband, minEpochs: 1, reduction: 3}, target: 0.98, afterSeconds: 3600}
  job:
    accelerator: {type: cpu}
    program: {function: {entryPoint: "wide_net:build"}}
    data: {train: ["gs://bucket/train-*"], validation: ["gs://bucket/held-out-*"]}
    training:
      epochs: 27
      optimizer: {className: Adam}
      metrics: [{className: SparseCategoricalAccuracy, config: {name: accuracy}}]
    output: {uri: "gs://bucket/digits"}
"""


def problems(**spec: Any) -> list[tuple[str, str]]:
    found = sweep_problems(document(**spec), ClusterSettings())
    return [(problem.where, str(problem)) for problem in found.problems]


def job(**sections: Any) -> dict[str, Any]:
    changed = copy.deepcopy(JOB)
    for name, section in sections.items():
        if section is None:
            changed.pop(name, None)
        else:
            changed[name] = section
    return changed


def test_sound_sweeps_have_none() -> None:
    (text,) = read_yaml(ISSUE, file="sweep.yaml")
    found = sweep_problems(text.content, ClusterSettings())
    assert (found.problems, found.doubts) == ((), ())
    assert problems(parameters=[RATE, WIDTH, POLICY]) == []
    assert problems(algorithm={"name": "Grid"}, parameters=[WIDTH, POLICY], trials=None) == []


def test_every_mistake_is_reported_at_its_line() -> None:
    wrong = (
        ISSUE.replace("optimizer.config.learning_rate", "optimiser.config.learning_rate")
        .replace("[64, 128, 256]", "[64, 0, 256]")
        .replace("{low: 32, high: 512, step: 32}", "{low: 512, high: 32}")
        .replace("metric: val_accuracy", "metric: val_acuracy")
        .replace('validation: ["gs://bucket/held-out-*"]', "")
    )
    (text,) = read_yaml(wrong, file="sweep.yaml")
    located = text.located(sweep_problems(text.content, ClusterSettings()).problems)
    assert [mistake.line for mistake in located.mistakes] == [6, 9, 12]
    assert "sweep.yaml:9: spec.parameters[0].path: 'training.optimiser.config.learning_rate': training has no field " \
           "'optimiser'. Did you mean 'optimizer'?" in str(located)  # fmt: skip


@pytest.mark.parametrize(
    ("parameter", "where", "text"),
    [
        ({"path": "training.epoch", "values": [1]}, ".path", "Did you mean 'epochs'?"),
        ({"path": "spec.training.epochs", "values": [1]}, ".path", "write training.epochs"),
        ({"path": "training.epochs.more", "values": [1]}, ".path", "training.epochs has no fields"),
        ({"path": "training.metrics[0].className", "values": ["a"]}, ".path", "is not a list there"),
        ({"path": "data.train[1]", "values": ["a"]}, ".path", "has 1 items"),
        ({"path": "output.uri", "values": ["a"]}, ".path", "cannot be searched: every trial has a run folder"),
        ({"path": "data.validation", "values": [["a"]]}, ".path", "cannot be searched"),
        ({"path": "training.seed"}, "", "has no values to search"),
        ({"path": "training.seed", "values": [1], "int": {"low": 1, "high": 2}}, "", "has values and int"),
        ({"path": "training.seed", "values": []}, ".values", "empty"),
        ({"path": "training.seed", "values": [1, 2, 1.0]}, ".values[2]", "twice"),
        ({"path": "training.seed", "int": {"low": 2, "high": 1}}, ".int", "the range is empty: low 2 is above high 1"),
        ({"path": "training.optimizer.config.x", "uniform": {"low": 1.5, "high": 1}}, ".uniform", "is empty"),
        ({"path": "training.optimizer.config.x", "logUniform": {"low": 0, "high": 1}}, ".logUniform.low",
         "0 has no logarithm"),
        ({"path": "training.optimizer.config.x", "logUniform": {"low": -1, "high": 1}}, ".logUniform.low",
         "more than 0"),
        ({"path": "training.seed", "values": [1], "when": {"path": "workers", "values": [1]}}, ".when.path",
         "no parameter before"),
        ({"path": "training.seed", "values": [1], "when": {"path": RATE["path"], "values": [1]}}, ".when.path",
         "range of real"),
        ({"path": "training.seed", "values": [1], "when": {"path": POLICY["path"], "values": ["a"]}},
         ".when.values[0]", "no value of"),
        ({"path": "training.optimizer.config", "values": [{}]}, ".path", "sets what spec.parameters[0] sets"),
        # The job's own rules, for one value or the end of a range.
        ({"path": "training.epochs", "values": [1, 0, 2]}, ".values[1]", "at least 1"),
        ({"path": "accelerator.countPerWorker", "int": {"low": 1, "high": 7, "step": 6}}, ".int.high", "7"),
        ({"path": "training.optimizer.className", "values": ["Adam", "Adamm"]}, ".values[1]", "Adam"),
    ],
)  # fmt: skip
def test_a_wrong_parameter(parameter: dict[str, Any], where: str, text: str) -> None:
    found = problems(parameters=[RATE, POLICY, parameter])
    assert [field for field, _ in found] == [f"spec.parameters[2]{where}"]
    assert text in found[0][1]


def test_a_mistake_of_several_values_is_reported_at_each() -> None:
    found = problems(parameters=[{"path": "training.seed", "uniform": {"low": 0.5, "high": 1.5}}])
    assert [field for field, _ in found] == ["spec.parameters[0].uniform.low", "spec.parameters[0].uniform.high"]
    # A section that only a parameter makes.
    found = problems(parameters=[POLICY, {"path": "precision.lossScale.mode", "values": ["Fixed"]}])
    assert "spec.parameters[1].values[0]" in [field for field, _ in found]


def test_a_value_is_checked_where_its_condition_holds() -> None:
    when = {"path": POLICY["path"], "values": ["mixed_float16"]}
    scale = {"path": "precision.lossScale.value", "values": [1024.0, 0.0], "when": when}
    parameters = [POLICY | {"values": ["float32", "mixed_float16"]}, scale]
    found = problems(parameters=parameters, job=job(accelerator={"type": "t4"}))
    assert [field for field, _ in found] == ["spec.parameters[1].values[1]"]


@pytest.mark.parametrize(
    ("spec", "where", "text"),
    [
        ({"objective": {"metric": "val_auc", "direction": "Maximize"}}, "spec.objective.metric",
         "reports no 'val_auc'"),
        ({"job": job(data={"train": ["gs://b/t"]})}, "spec.objective.metric", "no validation data. Add spec.job.data"),
        ({"algorithm": {"name": "Grid"}}, "spec.parameters[0].logUniform", "Grid cannot enumerate"),
        ({"algorithm": {"name": "CMA-ES"}, "parameters": [POLICY]}, "spec.algorithm.name", "there is none"),
        ({"algorithm": {"name": "CMA-ES"}, "stop": {"earlyStopping": {"rule": "Hyperband"}}}, "spec.algorithm.name",
         "alone"),
        ({"algorithm": {"name": "Hyperband", "reproducible": True}}, "spec.algorithm.reproducible", "in the order"),
        ({"algorithm": {"name": "Hyperband"}, "job": job(output=None)}, "spec.job.output.uri", "its checkpoint"),
        ({"algorithm": {"name": "Hyperband"}, "job": job(training={})}, "spec.job.training.epochs", "counts epochs"),
        ({"algorithm": {"name": "Hyperband"}, "job": job(training={"epochs": 9, "resume": "Never"})},
         "spec.job.training.resume", "continues"),
        ({"algorithm": {"name": "Hyperband"}, "job": job(training={"epochs": 9, "validationFreq": 3})},
         "spec.job.training.validationFreq", "no validation after epoch 1"),
        ({"algorithm": {"name": "Hyperband"}, "parameters": [{"path": "training.epochs", "values": [1]}]},
         "spec.parameters[0].path", "rungs"),
        ({"stop": {"earlyStopping": {"rule": "Hyperband", "minEpochs": 10}}}, "spec.stop.earlyStopping.minEpochs",
         "at most 9"),
        ({"trials": {"max": 1001}}, "spec.trials.max", "at most 1000"),
        ({"job": JOB | {"trainning": {}}}, "spec.job.trainning", "unknown field"),
        ({"job": job(accelerator={"type": "v1000"})}, "spec.job.accelerator.type", "v100"),
        ({"job": job(training="fast")}, "spec.job", "has no section 'optimizer'"),
        ({"parameters": []}, "spec.parameters", "at least 1"),
    ],
)  # fmt: skip
def test_a_wrong_sweep(spec: dict[str, Any], where: str, text: str) -> None:
    found = problems(**spec)
    assert where in [field for field, _ in found]
    assert any(field == where and text in line for field, line in found), found


def test_a_function_may_report_metrics_that_the_job_does_not_name() -> None:
    function = job(program={"function": {"entryPoint": "nets:build"}})
    searched = document(objective={"metric": "val_dice", "direction": "Maximize"}, job=function)
    found = sweep_problems(searched, ClusterSettings())
    assert (found.problems, found.doubts) == ((), ())


def test_a_status_that_would_not_fit_is_refused() -> None:
    many = [
        {"path": f"program.function.arguments.argument_number_{n}", "uniform": {"low": 0, "high": 1}} for n in range(32)
    ]
    function = job(program={"function": {"entryPoint": "nets:build"}})
    metric = {"metric": "loss", "direction": "Minimize"}
    found = problems(parameters=many, trials={"max": 1000}, job=function, objective=metric)
    assert [field for field, _ in found] == ["spec.trials.max"]
    assert problems(parameters=many, trials={"max": 250}, job=function, objective=metric) == []


def test_a_name_leaves_room_for_the_trials_numbers_and_another_document_is_refused() -> None:
    long = document() | {"metadata": {"name": "a" * 38}}
    assert [problem.where for problem in sweep_problems(long, ClusterSettings()).problems] == ["metadata.name"]
    assert sweep_problems(document() | {"metadata": {"name": "a" * 37}}, ClusterSettings()).problems == ()
    wrong: dict[str, Any]
    for wrong in ({"kind": "MPTrainingJob"}, {"apiVersion": "v1"}, {"spec": None}, {"metadata": 3}):
        assert sweep_problems(document() | wrong, ClusterSettings()).problems


def test_a_parameter_of_an_optimizer_that_the_job_does_not_name() -> None:
    (text,) = read_yaml(ISSUE.replace("      optimizer: {className: Adam}\n", ""), file="sweep.yaml")
    located = text.located(sweep_problems(text.content, ClusterSettings()).problems)
    assert [mistake.line for mistake in located.mistakes] == [9]
    assert (
        "this parameter sets training.optimizer, so the job must name it: spec.job.training.optimizer.className is "
        "missing. Add optimizer: {className: …} to spec.job.training."
    ) in str(located)
