"""The arithmetic of `mptj check --deep`, over facts that the trainer reports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import accelerators
from mptraining_api.model_report import (
    BATCH_MULTIPLE,
    ROOM,
    LayerFacts,
    ModelFacts,
    PolicyFacts,
    largest_batch,
    mixed_policy,
    padded,
    report,
)
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob


def job(accelerator: str = "nvidia-tesla-t4", policy: str | None = None, **sections: Any) -> ResolvedJob:
    kinds = {"tpu": {"topology": "2x2"}}
    spec = {
        "accelerator": {"type": accelerator} | kinds.get(accelerators.lookup(accelerator).kind, {}),
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": {"train": ["gs://bucket/train"]},
        "training": {"epochs": 1, "batchSize": {"perReplica": 64}},
    }
    precision = {"precision": {"policy": policy}} if policy else {}
    document = {"metadata": {"name": "job"}, "spec": spec | precision | sections}
    return resolve(MPTrainingJob.parse(document), ClusterSettings())


def dense(name: str, inputs: int, outputs: int, compute: str = "float16", **changed: Any) -> LayerFacts:
    parameters = inputs * outputs + outputs
    told = LayerFacts(
        name=name,
        kind="Dense",
        compute=compute,
        variables="float32",
        output=compute,
        output_shape=(outputs,),
        parameters=parameters,
        inputs=inputs,
        outputs=outputs,
        multiply_adds=inputs * outputs,
    )
    return told.model_copy(update=changed)


def facts(*layers: LayerFacts, policy: str = "mixed_float16", **changed: Any) -> ModelFacts:
    plain = tuple(layer.model_copy(update={"compute": "float32", "output": "float32"}) for layer in layers)
    policies = (
        PolicyFacts(policy="float32", layers=plain, output="float32", output_layer="head", activations=800, copies=0),
        PolicyFacts(
            policy=policy, layers=layers, output=layers[-1].output, output_layer="head", activations=500, copies=64
        ),
    )
    told = ModelFacts(
        name="model", keras="keras 3", parameters=10, trainable=8, weights=40, slots=80, gradients=32, policies=policies
    )
    return told.model_copy(update=changed)


@given(st.integers(1, 10_000), st.sampled_from([1, 8, 128]))
def test_the_next_multiple_is_the_smallest_that_holds_the_width(width: int, multiple: int) -> None:
    found = padded(width, multiple)
    assert found % multiple == 0
    assert width <= found < width + multiple


@given(st.integers(0, 2**40), st.integers(0, 2**38), st.integers(1, 2**30))
def test_the_largest_batch_fits_and_the_next_does_not(device: int, fixed: int, each: int) -> None:
    found = largest_batch(device, fixed, each)
    room = device * ROOM - fixed
    assert found >= 0
    assert found == 0 or found * each <= room + 1
    assert found < BATCH_MULTIPLE or found % BATCH_MULTIPLE == 0
    step = BATCH_MULTIPLE if found >= BATCH_MULTIPLE else 1
    assert (found + step) * each > room - 1 - each


def test_widths_are_padded_but_for_the_data_and_the_classes() -> None:
    found = report(facts(dense("one", 3, 30), dense("two", 30, 30), dense("head", 30, 10)), job())
    assert [(row.name, row.padding) for row in found.layers] == [
        ("one", "out 30 -> 32"),
        ("two", "in 30 -> 32, out 30 -> 32"),
        ("head", "in 30 -> 32"),
    ]
    one, two, head = (row.padding_cost for row in found.layers)
    assert one == head == pytest.approx(32 / 30 - 1)
    assert two == pytest.approx((32 / 30) ** 2 - 1)
    needed = 3 * 30 + 30 * 30 + 30 * 10
    assert found.padding_cost == pytest.approx((3 * 32 + 32 * 32 + 32 * 10) / needed - 1)


@pytest.mark.parametrize(
    ("accelerator", "policy", "padding"),
    [("nvidia-tesla-t4", None, None), ("tpu-v5-lite-podslice", None, "out 64 -> 128"), ("cpu", "mixed_bfloat16", None)],
)
def test_the_multiple_is_the_accelerators(accelerator: str, policy: str | None, padding: str | None) -> None:
    asked = job(accelerator, policy)
    found = report(facts(dense("one", 4, 64), dense("head", 64, 3), policy=mixed_policy(asked) or ""), asked)
    assert found.layers[0].padding == padding
    assert found.device == asked.accelerator.title


def test_a_model_of_one_layer_has_nothing_to_pad() -> None:
    found = report(facts(dense("head", 30, 3)), job())
    assert (found.layers[0].padding, found.padding_cost) == (None, 0.0)


def test_what_stays_in_float32_and_what_does_not_is_named() -> None:
    soft = {"softmax": True, "output": "float16"}
    found = report(facts(dense("one", 8, 8, "float32"), dense("head", 8, 3, **soft)), job())
    assert found.policy == "mixed_float16"
    assert found.kept_float32 == ("one",)
    assert found.softmax_not_float32 == ("head (float16)",)
    assert found.output_not_float32 == ("head (float16)",)
    plain = report(facts(dense("one", 8, 8, "float32"), dense("head", 8, 3, **soft)), job(policy="float32"))
    assert plain.policy == "float32"
    assert (plain.kept_float32, plain.softmax_not_float32, plain.output_not_float32) == ((), (), ())


def test_memory_is_compared_with_float32() -> None:
    found = report(facts(dense("one", 8, 100), dense("head", 100, 4, "float32")), job())
    plain, mixed = found.memory
    assert (plain.policy, mixed.policy) == ("float32", "mixed_float16")
    assert (plain.activations_per_example, mixed.activations_per_example) == (800, 500)
    # The gradients of the largest layer's input and output: twice 100 numbers.
    assert (plain.working_per_example, mixed.working_per_example) == (800, 400)
    device = 16 * 2**30
    assert plain.batch_size == largest_batch(device, 40 + 80 + 32, 1600)
    assert mixed.batch_size == largest_batch(device, 40 + 80 + 32 + 64, 900)
    assert (found.device_bytes, found.batch_size) == (device, 64)


def test_without_a_known_memory_no_batch_is_promised() -> None:
    found = report(facts(dense("head", 8, 4), policy="mixed_bfloat16"), job("cpu"))
    assert found.device_bytes is None
    assert [each.batch_size for each in found.memory] == [None, None]


@pytest.mark.parametrize(
    ("accelerator", "policy", "mixed"),
    [
        ("nvidia-tesla-t4", None, "mixed_float16"),
        ("nvidia-tesla-t4", "float32", "mixed_float16"),
        ("nvidia-tesla-a100", "mixed_bfloat16", "mixed_bfloat16"),
        ("nvidia-tesla-a100", "Measure", "mixed_float16"),
        ("tpu-v5-lite-podslice", "float32", "mixed_bfloat16"),
        ("cpu", None, "mixed_bfloat16"),
    ],
)
def test_the_mixed_policy_is_the_jobs_or_the_accelerators_best(
    accelerator: str, policy: str | None, mixed: str
) -> None:
    assert mixed_policy(job(accelerator, policy)) == mixed


def test_a_report_survives_json() -> None:
    found = report(facts(dense("one", 3, 30), dense("head", 30, 10)), job())
    assert type(found).read(found.to_json()) == found
