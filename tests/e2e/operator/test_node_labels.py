"""The real scheduler places the pods of every accelerator on every platform, and on no other nodes.

The pods are those of the operator's Indexed Job. Nodes have the labels that the platforms document, written here by
hand, and what the kubelet leaves of the smallest machine; no kubelet runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from mptraining_api.accelerators import catalogue
from mptraining_api.machines.machine_types import machine_types
from mptraining_api.machines.node_labels import accelerator_terms, platforms
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner
from tests.fakes import with_image
from tests.testbed import ControlPlane
from tests.testbed.kubernetes.operator_namespace import eventually
from tests.testbed.kubernetes.rest import Refused

GKE_GPU, GKE_TPU = "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
AUTO_MODE, KARPENTER = "eks.amazonaws.com/instance-gpu-name", "karpenter.k8s.aws/instance-gpu-name"
INSTANCE = "node.kubernetes.io/instance-type"
PRODUCT = "nvidia.com/gpu.product"
NVIDIA_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TPU_TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
ARM = {"kubernetes.io/arch": "arm64"}
ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A job on a platform, and the nodes that it belongs on, each by its labels."""

    name: str
    platform: str
    accelerator: dict[str, Any]
    nodes: tuple[dict[str, str], ...]
    devices: int = 1
    resource: str = "nvidia.com/gpu"
    taints: tuple[dict[str, str], ...] = (NVIDIA_TAINT,)
    mig_strategy: str = "Mixed"


def taint(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value, "effect": "NoSchedule"}


# GKE: the label's value, and the number of the largest machine.
GKE_GPUS = {
    "p100": ("nvidia-tesla-p100", 4),
    "v100": ("nvidia-tesla-v100", 8),
    "t4": ("nvidia-tesla-t4", 4),
    "l4": ("nvidia-l4", 8),
    "a100": ("nvidia-tesla-a100", 16),
    "a100-80gb": ("nvidia-a100-80gb", 8),
    "h100": ("nvidia-h100-80gb", 8),
    "h100-mega": ("nvidia-h100-mega-80gb", 8),
    "h200": ("nvidia-h200-141gb", 8),
    "b200": ("nvidia-b200", 8),
    "rtx-pro-6000": ("nvidia-rtx-pro-6000", 8),
}
# The label's value, and the topology of one machine, where there is one.
GKE_TPUS = {
    "v3": ("tpu-v3-device", "2x2", 4),
    "v4": ("tpu-v4-podslice", "2x2x1", 4),
    "v5e": ("tpu-v5-lite-podslice", "2x4", 8),
    "v5e-device": ("tpu-v5-lite-device", "2x4", 8),
    "v5p": ("tpu-v5p-slice", "2x2x1", 4),
    "v6e": ("tpu-v6e-slice", "2x4", 8),
    "v7x": ("tpu7x", "2x2x1", 4),
}
# Name of the GPU, its memory if the name is not enough, an instance type of a managed node group, devices.
EKS_GPUS = {
    "v100": ("v100", None, "p3.16xlarge", 8),
    "t4": ("t4", None, "g4dn.12xlarge", 4),
    "l4": ("l4", None, "g6.48xlarge", 8),
    "a100": ("a100", "40960", "p4d.24xlarge", 8),
    "a100-80gb": ("a100", "81920", "p4de.24xlarge", 8),
    "h100": ("h100", None, "p5.48xlarge", 8),
    "h200": ("h200", None, "p5en.48xlarge", 8),
    "b200": ("b200", None, "p6-b200.48xlarge", 8),
    "gb200": (None, None, "p6e-gb200.36xlarge", 4),
    "rtx-pro-6000": ("rtx-pro-server-6000", None, "g7e.48xlarge", 8),
}
AKS_GPUS = {
    "v100": ("Standard_NC24s_v3", 4),
    "t4": ("Standard_NC64as_T4_v3", 4),
    "a100": ("Standard_ND96asr_v4", 8),
    "a100-80gb": ("Standard_ND96amsr_A100_v4", 8),
    "h100": ("Standard_ND96isr_H100_v5", 8),
    "h200": ("Standard_ND96isr_H200_v5", 8),
    "gb200": ("Standard_ND128isr_NDR_GB200_v6", 4),
}
PRODUCTS = {
    "p100": ("Tesla-P100-PCIE-16GB", 4),
    "v100": ("Tesla-V100-SXM2-32GB", 8),
    "t4": ("Tesla-T4", 4),
    "l4": ("NVIDIA-L4", 8),
    "a100": ("NVIDIA-A100-SXM4-40GB", 8),
    "a100-80gb": ("NVIDIA-A100-80GB-PCIe", 4),
    "h100": ("NVIDIA-H100-80GB-HBM3", 8),
    "h200": ("NVIDIA-H200", 8),
    "b200": ("NVIDIA-B200", 8),
    "gb200": ("NVIDIA-GB200", 4),
    "rtx-pro-6000": ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 8),
}


def rows() -> Iterator[Row]:
    for name, (value, count) in GKE_GPUS.items():
        yield Row(f"gke-{name}", "GKE", gpu(name, count), ({GKE_GPU: value},), count)
    for name, (value, topology, chips) in GKE_TPUS.items():
        wanted = {"type": name, "topology": topology, "countPerWorker": chips}
        labels = {GKE_TPU: value, TPU_TOPOLOGY: topology}
        yield Row(f"gke-{name}", "GKE", wanted, (labels,), chips, "google.com/tpu", (TPU_TAINT,))
    arm = {GKE_GPU: "nvidia-gb200", **ARM}
    yield Row("gke-gb200", "GKE", gpu("gb200", 4), (arm,), 4, taints=(NVIDIA_TAINT, ARM_TAINT))
    for name, (short, memory, instance, count) in EKS_GPUS.items():
        extra = ARM if name == "gb200" else {}
        nodes = [{INSTANCE: instance, **extra}]
        for label in (AUTO_MODE, KARPENTER) if short else ():
            sized = {label.replace("-name", "-memory"): memory} if memory else {}
            nodes.append({label: str(short), INSTANCE: "of-a-newer-size", **sized, **extra})
        yield Row(f"eks-{name}", "EKS", gpu(name, count), tuple(nodes), count)
    for name, (size, count) in AKS_GPUS.items():
        labels = {INSTANCE: size, "kubernetes.azure.com/accelerator": "nvidia"}
        labels |= ARM if name == "gb200" else {}
        yield Row(f"aks-{name}", "AKS", gpu(name, count), (labels,), count, taints=(taint("sku", "gpu"),))
    for name, (product, count) in PRODUCTS.items():
        extra = ARM if name == "gb200" else {}
        yield Row(f"nvidia-{name}", "NVIDIA", gpu(name, count), ({PRODUCT: product, **extra},), count)
    yield from provisioned()
    yield from parts()


def gpu(name: str, count: int) -> dict[str, Any]:
    return {"type": name, "countPerWorker": count}


def provisioned() -> Iterator[Row]:
    """Provisionings, each with one L4, which machines on demand must not get."""
    l4, t4, cpu = gpu("l4", 1), gpu("t4", 1), {"type": "cpu"}
    spot, flex = {"provisioning": "Spot"}, {"provisioning": "FlexStart"}
    reserved = {"provisioning": "Reservation", "reservation": "team-l4"}
    gke, name = {GKE_GPU: "nvidia-l4"}, "cloud.google.com/gke-"
    spot_label, priority = {f"{name}spot": "true"}, {"kubernetes.azure.com/scalesetpriority": "spot"}
    spot_taint, priority_taint = taint(f"{name}spot", "true"), taint(*next(iter(priority.items())))
    flex_taints = (taint(f"{name}flex-start", "true"), taint(f"{name}queued", "true"))
    own = {"cloud.google.com/reservation-name": "team-l4", "cloud.google.com/reservation-affinity": "specific"}
    yield Row("gke-spot", "GKE", l4 | spot, (gke | spot_label,), taints=(NVIDIA_TAINT, spot_taint))
    yield Row("gke-flex", "GKE", l4 | flex, (gke | {f"{name}flex-start": "true"},), taints=(NVIDIA_TAINT, *flex_taints))
    yield Row("gke-reservation", "GKE", l4 | reserved, (gke | own,))
    auto = {AUTO_MODE: "l4", "karpenter.sh/capacity-type": "spot"}
    group = {INSTANCE: "g6.xlarge", "eks.amazonaws.com/capacityType": "SPOT"}
    yield Row("eks-spot", "EKS", l4 | spot, (auto, group))
    own = {KARPENTER: "l4", "karpenter.k8s.aws/capacity-reservation-id": "cr-0123abc"}
    yield Row("eks-reservation", "EKS", l4 | reserved | {"reservation": "cr-0123abc"}, (own,))
    aks = {INSTANCE: "Standard_NC4as_T4_v3", **priority}
    yield Row("aks-spot", "AKS", t4 | spot, (aks,), taints=(taint("sku", "gpu"), priority_taint))
    # A job on CPUs has no accelerator's taint.
    yield Row("gke-cpu-spot", "GKE", cpu | spot, (spot_label,), 0, taints=(spot_taint,))
    yield Row("aks-cpu-spot", "AKS", cpu | spot, (priority,), 0, taints=(priority_taint,))


def parts() -> Iterator[Row]:
    """Slices (MIG)."""
    a100 = "a100"
    third = {"type": a100, "partition": "3g.20gb"}
    product, slice_ = "NVIDIA-A100-SXM4-40GB", "nvidia.com/mig-3g.20gb"
    single = f"{product}-MIG-3g.20gb"
    yield Row(
        "gke-slice",
        "GKE",
        third,
        ({GKE_GPU: GKE_GPUS[a100][0], "cloud.google.com/gke-gpu-partition-size": "3g.20gb"},),
        2,
    )
    yield Row("nvidia-slice-mixed", "NVIDIA", third, ({PRODUCT: product},), 2, slice_)
    yield Row("nvidia-slice-single", "NVIDIA", third, ({PRODUCT: single},), 2, mig_strategy="Single")
    yield Row("eks-slice", "EKS", third, ({INSTANCE: "p4d.24xlarge"},), 2, slice_)
    discovered = {INSTANCE: "Standard_ND96asr_v4", PRODUCT: single}
    yield Row("aks-slice", "AKS", third, (discovered,), 2, taints=(taint("sku", "gpu"),), mig_strategy="Single")


ROWS = tuple(rows())


def pods_of(row: Row, namespace: str) -> list[dict[str, Any]]:
    """Return a pod of the row's job for each of its nodes."""
    document = {
        "metadata": {"name": row.name, "namespace": namespace},
        "spec": {
            "accelerator": row.accelerator,
            "program": {"application": {"name": "cnn", "classes": 3}},
            # The newest GPUs need one.
            "podTemplate": {"image": "trainer:1"},
            "data": {"train": ["gs://b/*.tfrecord"]},
        },
    }
    settings = ClusterSettings(
        node_labels=row.platform,  # type: ignore[arg-type]
        mig_strategy=row.mig_strategy,  # type: ignore[arg-type]
        runtimes=with_image("mptraining/trainer:test"),
    )
    job = MPTrainingJob.parse(document)
    owner = Owner(namespace, row.name, "8d1c0a52-5d0c-4d8e-9f0e-2f6c1b7e4a11", "2026-01-01T00:00:00Z")
    built = indexed_job(owner, resolve(job, settings), attempt=1, settings=PodSettings())
    spec = built["spec"]["template"]["spec"]
    names = [f"{row.name}-{number}" for number in range(len(row.nodes))]
    return [{"metadata": {"name": name, "labels": {"row": row.name}}, "spec": spec} for name in names]


def create_nodes(plane: ControlPlane, row: Row) -> None:
    """Create the row's nodes, each with what the kubelet leaves of the smallest machine, other pods aside."""
    accelerator = row.accelerator["type"]
    machines = [
        each
        for platform, found in machine_types(accelerator).items()
        for each in found
        if platform in (row.platform, "GKE" if row.platform == "NVIDIA" else row.platform)
        and each.devices >= row.accelerator.get("countPerWorker", 1)
    ]
    smallest = min(machines, key=lambda each: (each.devices, each.cpus, each.memory)) if machines else None
    cpus, memory = (smallest.cpus, smallest.memory) if smallest else (2, 8)
    for number, labels in enumerate(row.nodes):
        devices = {row.resource: str(row.devices)} if row.devices else {}
        room = {"cpu": f"{int(cpus * 900)}m", "memory": f"{int(memory * 1024 * 0.7)}Mi", **devices}
        plane.nodes.create(f"{row.name}-node-{number}", labels=labels, capacity=room, taints=row.taints)


def scheduled_condition(pod: dict[str, Any]) -> dict[str, Any]:
    found = (
        condition for condition in pod.get("status", {}).get("conditions", ()) if condition["type"] == "PodScheduled"
    )
    return next(found, {"status": "Unknown"})


def test_the_table_has_every_accelerator_of_every_platform() -> None:
    # All topologies of v3-slice have several machines: no job gets one.
    gke = {*GKE_GPUS, *GKE_TPUS, "gb200", "v3-slice"}
    listed = {"GKE": gke, "EKS": {*EKS_GPUS}, "AKS": {*AKS_GPUS}}
    listed["NVIDIA"] = {*PRODUCTS}
    for name, platform in platforms().items():
        known = {each.name for each in catalogue().values() if each.kind != "cpu" and accelerator_terms(each, platform)}
        assert listed[name] == known, name


@pytest.fixture
def plane(scheduled: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane; nodes and pods of this test are deleted after it."""
    before = {each["metadata"]["name"] for each in scheduled.rest.get("/api/v1/nodes")["items"]}
    yield scheduled
    for each in scheduled.rest.get("/api/v1/nodes")["items"]:
        if each["metadata"]["name"] not in before:
            scheduled.nodes.remove(each["metadata"]["name"])


@pytest.mark.parametrize("half", [0, 1])
def test_every_accelerator_is_refused_by_the_nodes_of_others_and_placed_on_its_own(
    plane: ControlPlane, half: int
) -> None:
    """In two halves, so that each row is refused while there are nodes of every second row, and placed beside them."""
    namespace = plane.namespace(f"node-labels-{half}")
    path = f"/api/v1/namespaces/{namespace}/pods"
    # GPUs and TPUs without a label.
    plane.nodes.create("no-label-gpu", capacity={"nvidia.com/gpu": "16"}, taints=[NVIDIA_TAINT])
    plane.nodes.create("no-label-tpu", capacity={"google.com/tpu": "8"}, taints=[TPU_TAINT])
    asked, others = ROWS[half::2], ROWS[1 - half :: 2]
    for row in others:
        create_nodes(plane, row)
    for row in asked:
        for pod in pods_of(row, namespace):
            plane.rest.post(path, pod)

    def pods() -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in plane.rest.get(path)["items"]}

    try:
        decided = eventually(
            pods, lambda found: all(scheduled_condition(each)["status"] != "Unknown" for each in found.values())
        )
        for pod in decided.values():
            condition, row_name = scheduled_condition(pod), pod["metadata"]["labels"]["row"]
            assert condition["status"] == "False", (row_name, pod["spec"].get("nodeName"), condition)
            # Nodes that are all tainted are refused before their labels are read.
            cause = "untolerated taint" if "-cpu-" in row_name else "didn't match Pod's node affinity/selector"
            assert cause in condition["message"], (row_name, condition)
        for row in asked:
            create_nodes(plane, row)
        placed = eventually(pods, lambda found: all(each["spec"].get("nodeName") for each in found.values()))
        for pod in placed.values():
            assert pod["spec"]["nodeName"].rpartition("-node-")[0] == pod["metadata"]["labels"]["row"]
    finally:
        for name in pods():
            try:
                plane.rest.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
            except Refused:
                continue
