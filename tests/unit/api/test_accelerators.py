"""The catalogue of accelerators, and the pods of a slice."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.accelerators import canonical_name, catalogue, chips, chips_per_pod, lookup, pods
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.precision import automatic_policy
from mptraining_api.rules.job import TPU_NAMES

TPU_SLICES = [
    (accelerator.name, topology, per_pod)
    for accelerator in catalogue().values()
    for topology, options in accelerator.topologies.items()
    for per_pod in options
]


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("v100", 7.0), ("t4", 7.5), ("l4", 8.9), ("a100", 8.0),
        ("a100-80gb", 8.0), ("h100", 9.0), ("h100-mega", 9.0),
        ("h200", 9.0), ("b200", 10.0), ("gb200", 10.0), ("rtx-pro-6000", 12.0),
    ],
)  # fmt: skip
def test_compute_capability_decides_about_bfloat16(name: str, capability: float) -> None:
    accelerator = lookup(name)
    assert accelerator.compute_capability == capability
    assert ("mixed_bfloat16" in accelerator.policies) == (capability >= 8.0)
    assert accelerator.multiple == 8


def test_a_p100_has_no_tensor_cores_and_gets_float32_alone() -> None:
    accelerator = lookup("p100")
    assert (accelerator.compute_capability, accelerator.policies) == (6.0, ("float32",))
    assert automatic_policy(accelerator)[0] == "float32"


def test_chips_of_a_topology() -> None:
    tpu = lookup("v7x")
    assert (chips_per_pod(tpu, "1x1x1"), chips_per_pod(tpu, "2x2x1")) == ((1,), (4,))
    assert pods("4x8x8", 4) == 64
    assert tpu.replicas_per_device == 2
    assert chips_per_pod(lookup("v5e"), "2x4") == (8, 4)
    assert chips_per_pod(lookup("v5e-device"), "2x4") == (8,)
    with pytest.raises(InvalidSpec, match="2x2, 2x4, 4x4"):
        chips_per_pod(lookup("v6e"), "3x3")


def test_the_rules_tell_tpus_and_gpus_by_their_names() -> None:
    for accelerator in catalogue().values():
        for name in (accelerator.name, accelerator.gke):
            assert (re.match(TPU_NAMES, name) is not None) == (accelerator.kind == "tpu")


def test_every_tpu_wants_multiples_of_128_and_no_float16() -> None:
    tpus = [accelerator for accelerator in catalogue().values() if accelerator.kind == "tpu"]
    assert len(tpus) == 8
    for tpu in tpus:
        assert tpu.multiple == 128
        assert "mixed_float16" not in tpu.policies
        assert tpu.topologies


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("T4", "t4"), ("a100", "a100"), ("a100-80gb", "a100-80gb"),
        ("v5e", "v5e"), ("cpu", "cpu"),
    ],
)  # fmt: skip
def test_an_alias_names_one_accelerator(alias: str, name: str) -> None:
    assert canonical_name(alias) == name
    words = [
        word
        for accelerator in catalogue().values()
        for word in {accelerator.name, accelerator.gke, *accelerator.aliases}
    ]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("word", "meant"),
    [("nvidia-t4", "t4"), ("tpu-v4", "v4"), ("nvidia-tesla-v10", "v100")],
)
def test_an_unknown_accelerator_is_answered_with_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(
        InvalidSpec, match=f"unknown accelerator '{word}'. Did you mean '{meant}'[?] (GPU|TPU)s: (p100|v3),"
    ):
        lookup(word)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("Trillium", "'Trillium' is a name of the command line alone; write 'v6e'"),
        ("NVIDIA-L4", "'NVIDIA-L4' is not in small letters; write 'l4'"),
    ],
)
def test_another_name_is_answered_with_the_name_to_write(word: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        lookup(word)
    assert str(caught.value) == f"spec.accelerator.type: {said}"


@given(st.sampled_from(TPU_SLICES))
def test_pods_share_the_chips_of_a_slice_without_rest(slice_: tuple[str, str, int]) -> None:
    _, topology, per_pod = slice_
    count = pods(topology, per_pod)
    assert count >= 1
    assert count * per_pod == chips(topology) == math.prod(int(side) for side in topology.split("x"))


@given(st.lists(st.integers(1, 40), min_size=2, max_size=3), st.integers(1, 64))
def test_pods_are_whole_or_refused(sides: list[int], per_pod: int) -> None:
    topology = "x".join(map(str, sides))
    if math.prod(sides) % per_pod:
        with pytest.raises(InvalidSpec, match="countPerWorker"):
            pods(topology, per_pod)
    else:
        assert pods(topology, per_pod) * per_pod == math.prod(sides)


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=3, max_size=3))
def test_cuboids_follow_the_rule_of_gke(sides: list[int]) -> None:
    total = math.prod(sides)
    ordered = sides == sorted(sides)
    small = total <= 64 and ordered and set(sides) <= {2, 4}
    large = total > 64 and ordered and all(side % 4 == 0 for side in sides)
    exists = "x".join(map(str, sides)) in lookup("v4").topologies
    assert exists == (sides == [2, 2, 1] or small or large)
