"""The advice of `mptj check`; the examples need little of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining.job_file.advice import MOST, advise, without_effect
from mptraining_api.accelerators import catalogue
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob

EXAMPLES = sorted((Path(__file__).parents[4] / "manifests" / "examples").glob("*.yaml"))
QUIET = {"output": {"uri": "gs://b/r"}}


def advice_text(*, settings: ClusterSettings | None = None, **spec: Any) -> str:
    base: dict[str, Any] = {
        "accelerator": {"type": "a100"},
        "program": {"application": {"name": "ResNet50"}},
        "data": {"train": ["gs://b/t"], "validation": ["gs://b/v"]},
    }
    job = MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": base | QUIET | spec})
    return "\n".join(advise(resolve(job, settings or ClusterSettings())))


def test_a_sound_job_needs_no_advice_and_a_fallback_is_no_measurement() -> None:
    assert advice_text() == ""
    scaling = {"learningRateScaling": {"rule": "None"}}
    assert advice_text(accelerator={"type": "a100", "countPerWorker": 4}, training=scaling) == ""
    assert "say nothing about it" in advice_text(settings=ClusterSettings(cpu_fallback=True))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"output": None}, "No output.uri"),
        ({"output": None, "accelerator": {"type": "l4", "provisioning": "Spot"}},
         "starts again from the beginning"),
        ({"accelerator": {"type": "l4", "provisioning": "Spot"}}, "checkpoint.everySteps"),
        ({"program": {"script": {"path": "train.py"}}, "data": None}, "last complete epoch"),
        ({"program": {"application": {"name": "ResNet50", "weights": "imagenet"}}}, "without internet"),
        ({"workers": 2, "data": {"train": ["/data/t"]}}, "must be mounted in all 2 pods"),
        ({"workers": 2, "podTemplate": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}},
         "All 2 pods mount the claim data: they start on different nodes only if its access mode is ReadWriteMany"),
        # The API server refuses a claim without a name; here it ends in no traceback.
        ({"workers": 2, "data": {"train": ["/data/t"]}, "podTemplate": {"volumes": [{"persistentVolumeClaim": {}}]}},
         "must be mounted in all 2 pods"),
        ({"accelerator": {"type": "t4"}}, "NVIDIA T4 has no bfloat16"),
        ({"accelerator": {"type": "v100"}, "precision": {"policy": "float32"}},
         "Tensor Cores of NVIDIA V100 idle"),
        ({"precision": {"policy": "float32"}}, "TF32 already"),
        ({"precision": {"lossScale": {"mode": "Fixed", "value": 1024}}}, "is not reduced on overflow"),
        ({"accelerator": {"type": "cpu"}, "precision": {"policy": "mixed_float16"}}, "emulated on a CPU"),
        ({"accelerator": {"type": "a100", "countPerWorker": 4}}, "learningRateScaling"),
        ({"training": {"batchSize": {"perReplica": 256}, "learningRateScaling": {"rule": "Linear",
         "baseBatchSize": 32}}}, "warmupSteps"),
        ({"training": {"batchSize": {"perReplica": 33}}}, "multiple of 8"),
        ({"program": {"function": {"entryPoint": "m:f"}}}, "multiples of 8 fill"),
        ({"accelerator": {"type": "v5e", "topology": "2x4"}, "precision": {"policy": "float32"}},
         "twice the memory traffic of mixed_bfloat16"),
        ({"accelerator": {"type": "a100", "countPerWorker": 2},
         "training": {"batchSize": {"perReplica": 8}}}, "sees the 8 examples of its own replica only"),
        ({"elastic": {"min": 2, "max": 8}, "training": {"batchSize": {"global": 840}}}, "105 examples per replica: "),
        ({"podTemplate": {"image": "localhost:5000/own/trainer"}}, "may be another image at each pull"),
        ({"data": {"train": ["gs://b/t"]}}, "No data.validation"),
        ({"data": {"train": ["gs://b/t"], "shuffle": {"bufferSize": 0}}}, "in the order"),
    ],
)  # fmt: skip
def test_a_sentence_for_each_risk(spec: dict[str, Any], expected: str) -> None:
    assert expected in advice_text(**spec)


def test_what_is_no_risk_gets_no_sentence() -> None:
    two = {"accelerator": {"type": "a100", "countPerWorker": 2}}
    assert "BatchNormalization" not in advice_text(**two, training={"batchSize": {"perReplica": 16}})
    assert "BatchNormalization" not in advice_text(training={"batchSize": {"perReplica": 8}})
    linear = {"rule": "Linear", "baseBatchSize": 32}
    assert "at once" not in advice_text(training={"batchSize": {"perReplica": 64}, "learningRateScaling": linear})
    assert "mounted" not in advice_text(data={"train": ["/data/t"], "validation": ["/data/v"]})
    assert "image" not in advice_text(podTemplate={"image": "localhost:5000/own/trainer:1"})


def test_the_learning_rate_follows_the_batch_by_the_optimizers_rule() -> None:
    four = {"accelerator": {"type": "a100", "countPerWorker": 4}}
    adam = advice_text(**four)
    assert "An update sees 128 examples" in adam
    assert "{rule: SquareRoot, baseBatchSize: 32, warmupSteps: <five epochs>} multiplies it by 2, as fits Adam" in adam
    momentum = {"className": "SGD", "config": {"learning_rate": 0.1}}
    sgd = advice_text(**four, training={"optimizer": momentum, "totalSteps": 5000, "stepsPerEpoch": 200})
    assert "{rule: Linear, baseBatchSize: 32, warmupSteps: 500} multiplies it by 4, as fits SGD" in sgd
    accumulated = advice_text(training={"gradientAccumulationSteps": 8})
    assert "An update sees 256 examples" in accumulated
    scaling = {"rule": "Linear", "baseBatchSize": 64, "warmupSteps": 9}
    assert "Adam wants SquareRoot" in advice_text(**four, training={"learningRateScaling": scaling})
    assert "SquareRoot" not in advice_text(**four, training={"learningRateScaling": scaling, "optimizer": momentum})


# Slices of TPU v3 have several machines, on which TensorFlow cannot train. A job on the others differs from an example
# in the name of the accelerator alone.
WITHOUT_EXAMPLE = {
    *("v3-slice", "p100", "h200", "b200", "gb200"),
    *("rtx-pro-6000", "v7x"),
}


def test_there_are_examples_for_each_kind_of_accelerator_and_program() -> None:
    specs = [MPTrainingJob.load(path).spec for path in EXAMPLES]
    assert {spec.accelerator.type for spec in specs} == catalogue().keys() - WITHOUT_EXAMPLE
    shown = {(catalogue()[spec.accelerator.type].kind, next(iter(spec.program.to_document()))) for spec in specs}
    assert shown == {
        (kind, program) for kind in ("cpu", "gpu", "tpu") for program in ("application", "function", "script")
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_resolves_and_loses_no_work(path: Path) -> None:
    job = MPTrainingJob.load(path)
    assert without_effect(job.spec, resolve(job, ClusterSettings())) == []
    for cpu_fallback in (False, True):
        sentences = advise(resolve(job, ClusterSettings(cpu_fallback=cpu_fallback)))
        assert len(sentences) <= 3 < MOST
        for sentence in sentences:
            assert len(sentence) <= 200
            assert sentence.endswith(".")
            assert "\n" not in sentence
        for mistake in ("output.uri", "everySteps", "No data.validation", "learningRateScaling"):
            assert not any(mistake in sentence for sentence in sentences)
    source = path.parent / "source"
    if script := job.spec.program.script:
        compile((source / script.path).read_text(encoding="utf-8"), script.path, "exec")
    if job.spec.program.function is not None:
        module, _, function = job.spec.program.function.entry_point.partition(":")
        assert f"def {function}(" in (source / f"{module}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"scheduling": {"gang": "Volcano"}},
         ["scheduling.gang: Volcano changes nothing for a job of one pod: leave it out, or take more workers."]),
        ({"scheduling": {"gang": "None", "topology": "Spread", "queueName": "a"}}, []),
        ({"workers": 2, "scheduling": {"gang": "Volcano", "topology": "Pack"}}, []),
        ({"elastic": {"min": 1, "max": 2}, "scheduling": {"topology": "Pack"}}, []),
        ({"accelerator": {"type": "l4", "tryForSeconds": 9, "alternatives": [
            {"type": "t4"}, {"type": "l4", "countPerWorker": 1}, {"type": "t4"}]}},
         ["accelerator.alternatives[1] is the same machine as the first choice: remove it.",
          "accelerator.alternatives[2] is the same machine as alternatives[0]: remove it."]),
    ],
)  # fmt: skip
def test_a_field_without_effect_is_named(spec: dict[str, Any], expected: list[str]) -> None:
    base = {"accelerator": {"type": "l4"}, "program": {"application": {"name": "ResNet50"}}}
    document = base | {"data": {"train": ["gs://b/t"]}} | spec
    job = MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": document})
    assert without_effect(job.spec, resolve(job, ClusterSettings())) == expected
