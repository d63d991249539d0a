"""The flags of `mptj submit` as a job."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining.cli.submit_flags import Flags, application, document, name_prefix, refuse_flags_with_file, target_kind
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import JOB_NAME


def test_kinds_of_targets() -> None:
    targets = {
        "file": "a/b.yml",
        "script": "Flowers.ipynb",
        "function": "flowers.model:build",
        "application": "ResNet50",
    }
    assert {kind: target_kind(target) for kind, target in targets.items()} == {kind: kind for kind in targets}
    assert target_kind("train.py") == "script"


@given(st.text(min_size=1, max_size=80))
def test_a_name_by_the_cluster_is_always_a_name(target: str) -> None:
    made = f"{name_prefix(target)}-x7k2p"
    assert JOB_NAME.fullmatch(made), made


def test_every_flag_is_a_field_of_the_job() -> None:
    flags = Flags(
        name="pictures", accelerator="v5e", topology="2x4", workers=1, spot=True, precision="mixed_bfloat16",
        data=("gs://b/train-*",), validation=("gs://b/val-*",), label="species", classes=5, epochs=5, batch_size=32,
        run_folder="gs://b/run", image="registry/own:1",
    )  # fmt: skip
    made = document("ResNet50", flags, application("ResNet50", flags))
    assert made["metadata"] == {"name": "pictures"}
    assert made["spec"] == {
        "accelerator": {"type": "v5e", "topology": "2x4", "provisioning": "Spot"}, "workers": 1,
        "precision": {"policy": "mixed_bfloat16"}, "program": {"application": {"name": "ResNet50", "classes": 5}},
        "data": {"train": ["gs://b/train-*"], "validation": ["gs://b/val-*"], "label": "species"},
        "training": {"epochs": 5, "batchSize": {"perReplica": 32}}, "output": {"uri": "gs://b/run"},
        "podTemplate": {"image": "registry/own:1"},
    }  # fmt: skip


def test_only_given_flags_are_in_the_job() -> None:
    made = document("train.py", Flags(), {"script": {"path": "train.py"}})
    assert made["metadata"] == {"generateName": "train-"}
    assert made["spec"] == {"accelerator": {"type": "cpu"}, "program": {"script": {"path": "train.py"}}}
    with pytest.raises(InvalidSpec, match="Did you mean 'v100'"):
        document("train.py", Flags(accelerator="v10"), {})


def test_flags_beside_a_file_are_refused() -> None:
    refuse_flags_with_file("job.yaml", Flags())
    with pytest.raises(InvalidSpec, match=re.escape("it cannot be combined with --count, --batch-size, ARGUMENTS")):
        refuse_flags_with_file("job.yaml", Flags(count=2, batch_size=3, arguments=("x",)))
