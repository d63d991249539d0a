"""Placement of pods by platform: selector or affinity, tolerations, resource names, requests."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import Placement, ResolvedJob
from mptraining_api.spec import MPTrainingJob

A100 = "a100"
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def job(accelerator: dict[str, Any], settings: ClusterSettings, **spec: Any) -> ResolvedJob:
    document = {
        "metadata": {"name": "placed"},
        "spec": {
            "accelerator": accelerator,
            "program": {"application": {"name": "cnn", "classes": 3}},
            "data": {"train": ["gs://b/*.tfrecord"]},
            # The newest GPUs need one.
            "podTemplate": {"image": "trainer:1"},
            **spec,
        },
    }
    return resolve(MPTrainingJob.parse(document), settings)


def place(accelerator: dict[str, Any], node_labels: Any = "GKE", **settings: Any) -> Placement:
    return job(accelerator, ClusterSettings(node_labels=node_labels, **settings)).placement


def terms(placement: Placement) -> list[dict[str, tuple[str, ...]]]:
    return [
        {each["key"]: tuple(each["values"]) for each in term["matchExpressions"]}
        for term in placement.node_affinity or ()
    ]


def toleration(key: str, value: str) -> dict[str, str]:
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("wanted", "labels", "tolerated"),
    [
        ({}, {}, []),
        ({"provisioning": "Spot"}, {"cloud.google.com/gke-spot": "true"}, [("cloud.google.com/gke-spot", "true")]),
        ({"provisioning": "FlexStart"}, {"cloud.google.com/gke-flex-start": "true"},
         [("cloud.google.com/gke-flex-start", "true"), ("cloud.google.com/gke-queued", "true")]),
        ({"provisioning": "Reservation", "reservation": "team-a100"},
         {"cloud.google.com/reservation-name": "team-a100", "cloud.google.com/reservation-affinity": "specific"}, []),
        ({"provisioning": "Reservation", "reservation": "projects/pool-1/reservations/team-a100"},
         {"cloud.google.com/reservation-name": "team-a100", "cloud.google.com/reservation-affinity": "specific",
         "cloud.google.com/reservation-project": "pool-1"}, []),
        ({"partition": "3g.20gb"}, {"cloud.google.com/gke-gpu-partition-size": "3g.20gb"}, []),
    ],
)  # fmt: skip
def test_gke_selects_by_labels_alone(
    wanted: dict[str, Any], labels: dict[str, str], tolerated: list[tuple[str, str]]
) -> None:
    placed = place({"type": A100, **wanted})
    assert placed.node_selector == {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100", **labels}
    assert placed.node_affinity is None
    assert placed.resources == {"nvidia.com/gpu": 1}
    assert list(placed.tolerations) == [GPU_TAINT, *(toleration(key, value) for key, value in tolerated)]


@pytest.mark.parametrize("gpu", ["b200", "gb200", "rtx-pro-6000"])
@pytest.mark.parametrize("settings", [ClusterSettings(), ClusterSettings(cpu_fallback=True)])
def test_a_gpu_without_kernels_in_tensorflow_s_wheels_needs_an_image_of_the_job(
    gpu: str, settings: ClusterSettings
) -> None:
    assert job({"type": gpu}, settings).image == "trainer:1"
    with pytest.raises(InvalidSpec, match=r"no kernels for its compute capability 1\d.0; .* podTemplate.image"):
        job({"type": gpu}, settings, podTemplate={})


def test_a_tpu_is_chosen_by_type_and_topology_and_gb200_by_its_architecture() -> None:
    tpu = place({"type": "v5e", "topology": "2x4"})
    assert tpu.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    assert tpu.resources == {"google.com/tpu": 8}
    gb200 = place({"type": "gb200"})
    assert gb200.node_selector["kubernetes.io/arch"] == "arm64"
    assert toleration("kubernetes.io/arch", "arm64") in gb200.tolerations


def test_eks_has_three_kinds_of_nodes() -> None:
    spot = terms(place({"type": A100, "provisioning": "Spot"}, "EKS"))
    assert spot == [
        {
            "eks.amazonaws.com/instance-gpu-name": ("a100",),
            "eks.amazonaws.com/instance-gpu-memory": ("40960",),
            "karpenter.sh/capacity-type": ("spot",),
        },
        {
            "karpenter.k8s.aws/instance-gpu-name": ("a100",),
            "karpenter.k8s.aws/instance-gpu-memory": ("40960",),
            "karpenter.sh/capacity-type": ("spot",),
        },
        {"node.kubernetes.io/instance-type": ("p4d.24xlarge",), "eks.amazonaws.com/capacityType": ("SPOT",)},
    ]
    reserved = terms(place({"type": A100, "provisioning": "Reservation", "reservation": "cr-12ab"}, "EKS"))
    assert [term.get("karpenter.k8s.aws/capacity-reservation-id") for term in reserved] == [None, ("cr-12ab",)]


def test_aks_selects_by_the_sizes_of_its_machines() -> None:
    placed = place({"type": "t4", "provisioning": "Spot"}, "AKS")
    assert placed.node_selector == {"kubernetes.azure.com/scalesetpriority": "spot"}
    assert "Standard_NC4as_T4_v3" in terms(placed)[0]["node.kubernetes.io/instance-type"]
    assert toleration("sku", "gpu") in placed.tolerations
    assert toleration("kubernetes.azure.com/scalesetpriority", "spot") in placed.tolerations


@pytest.mark.parametrize(
    ("wanted", "strategy", "product", "resource"),
    [
        ({}, "Mixed", "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu"),
        ({"partition": "3g.20gb"}, "Mixed", "NVIDIA-A100-SXM4-40GB", "nvidia.com/mig-3g.20gb"),
        ({"partition": "3g.20gb"}, "Single", "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "nvidia.com/gpu"),
    ],
)
def test_gpu_feature_discovery_names_the_product(
    wanted: dict[str, Any], strategy: str, product: str, resource: str
) -> None:
    placed = place({"type": A100, **wanted}, "NVIDIA", mig_strategy=strategy)
    assert product in terms(placed)[0]["nvidia.com/gpu.product"]
    assert placed.resources == {resource: 1}


@pytest.mark.parametrize("platform", ["EKS", "AKS"])
def test_slices_of_one_size_are_told_from_whole_gpus_by_their_product(platform: str) -> None:
    placed = place({"type": A100, "partition": "3g.20gb"}, platform, mig_strategy="Single")
    assert placed.resources == {"nvidia.com/gpu": 1}
    for term in terms(placed):
        assert "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb" in term["nvidia.com/gpu.product"]


@pytest.mark.parametrize(
    ("accelerator", "node_labels", "found"),
    [
        ({"type": "v6e", "topology": "2x2"}, "EKS", "spec.accelerator.type: the node labels of EKS know no"),
        ({"type": "p100"}, "AKS", "spec.accelerator.type: the node labels of AKS know no"),
        ({"type": A100, "provisioning": "FlexStart"}, "EKS", "expected OnDemand, Spot, Reservation"),
        ({"type": A100, "provisioning": "Reservation", "reservation": "r"}, "AKS", "expected OnDemand, Spot."),
        ({"type": A100, "provisioning": "Spot"}, "NVIDIA", "expected OnDemand."),
        ({"type": "cpu", "provisioning": "Spot"}, "NVIDIA", "expected OnDemand."),
        ({"type": A100, "provisioning": "Reservation", "reservation": "projects/p/reservations/r"}, "EKS",
         "expected the id of a capacity reservation"),
        ({"type": A100, "partition": "1g.24gb"}, "GKE", "NVIDIA A100 40 GB has no slice '1g.24gb'; expected 1g.5gb,"),
        ({"type": "l4", "partition": "1g.5gb"}, "GKE", "NVIDIA L4 has no slice '1g.5gb'"),
        ({"type": "b200", "countPerWorker": 2}, "GKE", "no machine has 2 x NVIDIA B200; expected 8"),
        ({"type": "b200", "countPerWorker": 9}, "NVIDIA", "no machine has 9 x NVIDIA B200; expected 1 to 8"),
    ],
)  # fmt: skip
def test_what_the_platform_does_not_have_is_refused(accelerator: dict[str, Any], node_labels: str, found: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        place(accelerator, node_labels)
    assert found in str(caught.value)


def test_a_job_may_use_a_part_of_a_machine_that_is_not_gke_s_and_a_slice_is_one_device() -> None:
    for node_labels in ("NVIDIA", "EKS", "Auto"):
        assert place({"type": "b200", "countPerWorker": 2}, node_labels).resources == {"nvidia.com/gpu": 2}
    resolved = job({"type": "b200", "partition": "1g.23gb"}, ClusterSettings())
    assert (resolved.replicas, resolved.accelerator.count_per_worker) == (1, 1)


def test_only_workers_of_one_job_are_packed() -> None:
    packed = {"scheduling": {"topology": "Pack"}}
    assert job({"type": "l4"}, ClusterSettings(), **packed).placement.pack_by is None
    several = job({"type": "l4"}, ClusterSettings(), workers=2, **packed).placement.pack_by
    assert several[0] == "cloud.google.com/gce-topology-subblock"


def test_for_a_cluster_that_is_not_known_the_default_platform_counts() -> None:
    assert place({"type": A100}, "Auto") == place({"type": A100}, "GKE")
    assert place({"type": "cpu"}) == Placement(node_selector={}, resources={}, tolerations=())
    with pytest.raises(InvalidSpec, match="A100 40 GB has no slice"):
        place({"type": A100, "partition": "1g.24gb"}, "Auto")
