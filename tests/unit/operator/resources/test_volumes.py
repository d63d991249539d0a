"""Volumes that outlive a pod; collisions of mounts are tested with the pods."""

from __future__ import annotations

import pytest

from mptraining_api.pods.fields import PodTemplate
from mptraining_operator.resources.volumes import outlives_pod

TEMPLATE = PodTemplate.parse(
    {
        "volumes": [
            {"name": "claim", "persistentVolumeClaim": {"claimName": "runs"}},
            {"name": "bucket", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "volumeMounts": [
            {"name": "claim", "mountPath": "//runs/"},
            {"name": "scratch", "mountPath": "/runs/scratch"},
            {"name": "bucket", "mountPath": "/tmp/bucket"},
        ],
    }
)


@pytest.mark.parametrize(
    ("uri", "lasts"),
    [
        ("gs://bucket/runs", True),
        ("/runs/digits", True),
        ("//runs/digits", True),
        ("/runs/scratch/digits", False),
        ("/runs-of-others", False),
        ("runs/digits", False),
        # Below the images' working folder.
        ("bucket/runs", True),
    ],
)
def test_a_run_folder_outlives_its_pod_in_a_bucket_or_on_a_volume_that_does(uri: str, lasts: bool) -> None:
    assert outlives_pod(uri, TEMPLATE) is lasts
    assert outlives_pod(uri, PodTemplate()) is uri.startswith("gs://")
