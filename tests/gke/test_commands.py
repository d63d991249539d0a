"""Each command against recorded shapes: gcloud's own flags, and the fields of Google's APIs that they set.

recorded/gcloud_flags.json has the long flags of gcloud 578.0.0, recorded/api_shapes.json the fields of the discovery
documents in the Go module google.golang.org/api v0.289.0 (container/v1, storage/v1, serviceusage/v1).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gke.plan import Command, Step, clusters, project_number, setup, teardown
from gke.pools import POOLS, chosen
from gke.settings import InvalidSettings, Settings, check

RECORDED = Path(__file__).parent / "recorded"
FLAGS: dict[str, list[str]] = json.loads((RECORDED / "gcloud_flags.json").read_text())["commands"]
SCHEMAS: dict[str, Any] = json.loads((RECORDED / "api_shapes.json").read_text())["schemas"]
SETTINGS = Settings("my-project-1")
# Flags that choose project, output and questions, and none of the request's fields.
CLIENT = {"--project", "--quiet", "--format", "--cluster", "--raw", "--recursive"}
# The request's message, and the field that each flag sets.
FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "container clusters create": (
        "Cluster",
        {
            "--location": "location",
            "--release-channel": "releaseChannel.channel",
            "--num-nodes": "initialNodeCount",
            "--machine-type": "nodeConfig.machineType",
            "--disk-size": "nodeConfig.diskSizeGb",
            "--workload-pool": "workloadIdentityConfig.workloadPool",
            "--workload-metadata": "nodeConfig.workloadMetadataConfig.mode",
            "--labels": "resourceLabels",
        },
    ),
    "container node-pools create": (
        "NodePool",
        {
            # Part of the request's path.
            "--location": "name",
            "--machine-type": "config.machineType",
            "--spot": "config.spot",
            "--num-nodes": "initialNodeCount",
            "--enable-autoscaling": "autoscaling.enabled",
            "--min-nodes": "autoscaling.minNodeCount",
            "--max-nodes": "autoscaling.maxNodeCount",
            "--disk-size": "config.diskSizeGb",
            "--workload-metadata": "config.workloadMetadataConfig.mode",
            "--labels": "config.resourceLabels",
            "--accelerator": "config.accelerators",
        },
    ),
    "storage buckets create": (
        "Bucket",
        {
            "--location": "location",
            "--uniform-bucket-level-access": "iamConfiguration.uniformBucketLevelAccess.enabled",
            "--public-access-prevention": "iamConfiguration.publicAccessPrevention",
        },
    ),
    "storage buckets update": ("Bucket", {"--update-labels": "labels"}),
    "storage buckets add-iam-policy-binding": ("Policy", {"--member": "bindings.members", "--role": "bindings.role"}),
}


def steps() -> tuple[Step, ...]:
    return (*setup(SETTINGS, POOLS, "123456789", "charts/mptraining"), *teardown(SETTINGS, [SETTINGS.zone]))


def gcloud_commands() -> list[Command]:
    found = [project_number(SETTINGS), clusters(SETTINGS)]
    for step in steps():
        found += [command for command in (step.create, *step.after, step.look, step.delete) if command]
    return [command for command in dict.fromkeys(found) if command[0] == "gcloud"]


def group(command: Command) -> str:
    """Return the words of the command that gcloud knows, such as container clusters create."""
    return max((name for name in FLAGS if command[1:][: len(name.split())] == tuple(name.split())), key=len)


def flags(command: Command) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in command if word.startswith("--"))


def field(schema: str, path: str) -> dict[str, Any]:
    """Return the recorded shape of a field by its path; KeyError names the part that does not exist."""
    shape: dict[str, Any] = {"$ref": schema}
    for part in path.split("."):
        while "items" in shape:
            shape = shape["items"]
        shape = (SCHEMAS[shape["$ref"]] if "$ref" in shape else shape["properties"])[part]
    return shape


@pytest.mark.parametrize("command", gcloud_commands(), ids=" ".join)
def test_gcloud_knows_every_flag_and_each_sets_a_field_of_the_api(command: Command) -> None:
    name = group(command)
    message, fields = FIELDS.get(name, ("", {}))
    for flag, value in flags(command).items():
        assert flag in FLAGS[name]
        if flag in CLIENT or not message:
            assert flag in CLIENT | {"--location"}
            continue
        shape = field(message, fields[flag])
        if shape.get("type") == "integer":
            assert value.removesuffix("GB").isdigit()
        if shape.get("type") == "boolean":
            assert not value
        if "enum" in shape:
            assert value.upper() in shape["enum"]


@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool.accelerator], ids=lambda pool: pool.name)
def test_an_accelerator_is_one_of_the_api_with_a_driver(pool: Any) -> None:
    parts = dict(part.split("=") for part in pool.accelerator.split(","))
    assert set(SCHEMAS["AcceleratorConfig"]) >= {"acceleratorType", "acceleratorCount", "gpuDriverInstallationConfig"}
    assert parts["type"] == pool.job_accelerator["type"]
    assert int(parts["count"]) == pool.job_accelerator["countPerNode"]
    assert parts["gpu-driver-version"].upper() in SCHEMAS["GPUDriverInstallationConfig"]["gpuDriverVersion"]["enum"]


def test_the_labels_are_where_the_api_shows_them() -> None:
    """`down` decides by them: a wrong path would keep or delete the wrong thing."""
    message = {"cluster": "Cluster", "node": "NodePool", "bucket": "Bucket"}
    for step in steps():
        if step.labels:
            shape = field(message[step.title.split()[0]], ".".join(step.labels))
            assert shape["additionalProperties"] == {"type": "string"}


def test_the_list_of_clusters_has_what_down_reads() -> None:
    for name in ("name", "location"):
        assert field("Cluster", name)["type"] == "string"
    assert field("Bucket", "location")["type"] == "string"


def test_only_marked_objects_are_ever_deleted() -> None:
    for step in steps():
        assert not step.delete or (step.look and step.labels)
    cluster = next(step for step in steps() if step.title.startswith("cluster"))
    assert "--labels=mptraining-gke=mptraining-try" in cluster.create


def test_the_pods_are_the_member_of_the_buckets_role_without_an_account_of_googles() -> None:
    binding = next(command for command in gcloud_commands() if "add-iam-policy-binding" in command)
    assert flags(binding)["--member"] == (
        "principal://iam.googleapis.com/projects/123456789/locations/global/workloadIdentityPools/"
        "my-project-1.svc.id.goog/subject/ns/training/sa/trainer"
    )


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InvalidSettings) as error:
        check(Settings("X", zone="us-central1", name="A"))
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == ["--project", "--zone", "--name"]
    with pytest.raises(ValueError, match="h100: unknown; there are t4, a100, v5e"):
        chosen(["h100"])


@pytest.mark.parametrize(
    "images",
    [
        "eu",
        "team/images",
        "https://registry.example/images",
        "registry.example/Images",
        "images:latest",
        "team/images:1",
        "registry.example/images:1",
        "localhost:latest",
        "registry.example:v1/images",
        # The ID of a project of a domain has a colon, which is a slash in the name of an image.
        "gcr.example/example.com:project/images",
    ],
)
def test_images_that_are_no_registry_are_refused(images: str) -> None:
    with pytest.raises(InvalidSettings, match=r"--images: .* expected REGION-docker.pkg.dev/PROJECT/REPOSITORY"):
        check(Settings("my-project-1", images=images), images_needed=True)


@pytest.mark.parametrize(
    "images",
    [
        "us-docker.pkg.dev/my-project-1/images",
        "registry.example",
        "localhost:5000/a",
        "ghcr.io/team/",
        "localhost/a",
        "registry:5000",
        "gcr.example/example.com/project/images",
    ],
)
def test_a_host_with_a_dot_or_a_port_is_a_registry(images: str) -> None:
    check(Settings("my-project-1", images=images), images_needed=True)
