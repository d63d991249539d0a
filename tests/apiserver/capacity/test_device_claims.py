"""GPUs by dynamic resource allocation: the real scheduler allocates devices of a ResourceSlice to the pods of a job.

The driver and its devices are a ResourceSlice alone; there are no machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit, Options, Run
from tests.testbed.binaries import other
from tests.testbed.kubernetes.control_plane import CONTROLLERS
from tests.testbed.kubernetes.installation import grant, install

DRA = "/apis/resource.k8s.io/v1"
DRIVER, CLASS, T4 = "gpu.example.com", "t4.example.com", "t4"
pytestmark = pytest.mark.skipif(other() == "1.33", reason="resource.k8s.io/v1 is served from Kubernetes 1.34 on")


def device(name: str, product: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"productName": {"string": product}}}


def install_driver(control_plane: ControlPlane) -> None:
    """Create two machines, with four T4 and a V100, and a class for each GPU."""
    for number in (1, 2):
        node = f"gpu-{number}"
        control_plane.nodes.create(node)
        devices = [device(f"t4-{index}", "T4") for index in range(2)]
        devices += [device("v100-0", "V100")] if number == 1 else []
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        slice_ = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}
        control_plane.rest.post(f"{DRA}/resourceslices", slice_)
    for name, product in ((CLASS, "T4"), ("v100.example.com", "V100")):
        expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].productName == "{product}"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
        control_plane.rest.post(f"{DRA}/deviceclasses", body)


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory, control_plane_servers: None, new_namespace: Any) -> Iterator[Any]:
    options = Options(scheduler=True, controllers=(*CONTROLLERS, "resourceclaim-controller"))
    with ControlPlane(tmp_path_factory.mktemp("claims"), options) as plane:
        install(plane)
        rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaimtemplates"], "verbs": ["get", "create"]}
        grant(plane, "claims", rule)
        install_driver(plane)
        ns = new_namespace(plane, "claims", deviceClasses={"t4": CLASS})
        ns.with_kubelet(bind=False)
        ns.operator()
        yield ns
        ns.close()


def allocated(plane: ControlPlane, product: str) -> list[tuple[str, str]]:
    """Return machine and device of each allocation of that product."""
    found = plane.rest.get(f"{DRA}/namespaces/claims/resourceclaims")["items"]
    results = [each["status"]["allocation"]["devices"]["results"] for each in found if "allocation" in each["status"]]
    devices = sorted((each["pool"], each["device"]) for result in results for each in result)
    return [(pool, name) for pool, name in devices if name.startswith(product)]


def test_workers_get_devices_of_the_class_and_a_job_waits_for_those_of_another(claims: Any) -> None:
    plane = claims.control_plane
    accelerator = {"type": T4, "countPerWorker": 2}
    claims.create("holds", lambda pod: Run(), accelerator=accelerator, workers=2)
    claims.running("holds")
    assert allocated(plane, "t4") == [(f"gpu-{node}", f"t4-{index}") for node in (1, 2) for index in (0, 1)]
    claims.create("waits", lambda pod: Exit(0), accelerator={"type": T4, "countPerWorker": 1})
    claims.until("waits", lambda status: "Unschedulable" in str(status.get("conditions")))
    claims.delete("holds")
    claims.phase("waits", "Succeeded")


if other() == "1.36":

    def test_the_extended_resource_is_allocated_from_a_class_that_names_it(claims: Any) -> None:
        """DRAExtendedResource, beta in 1.36: jobs need no deviceClasses."""
        plane = claims.control_plane
        patch = {"spec": {"extendedResourceName": "nvidia.com/gpu"}}
        plane.rest.patch(f"{DRA}/deviceclasses/v100.example.com", patch)
        plane.rest.patch(
            "/api/v1/nodes/gpu-1", {"metadata": {"labels": {"cloud.google.com/gke-accelerator": "nvidia-tesla-v100"}}}
        )
        accelerator = {"type": "v100", "countPerWorker": 1}
        claims.create("extended", lambda pod: Run(), accelerator=accelerator, workers=1)
        claims.running("extended")
        assert allocated(plane, "v100") == [("gpu-1", "v100-0")]
        claims.delete("extended")
