"""The options of `mptj run` and `mptj submit` as a job."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining.cli.program_flags import (
    Flags,
    application,
    document,
    name_prefix,
    refuse_flags_of_program,
    target_kind,
)
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


def test_every_option_is_a_field_of_the_job() -> None:
    flags = Flags(
        name="pictures", accelerator="v5e", topology="2x4", workers=1, spot=True, precision="auto",
        data=("gs://b/train-*",), validation=("gs://b/val-*",), label="species", classes=5, epochs=5, batch_size=32,
        run_folder="gs://b/run", image="registry/own:1",
    )  # fmt: skip
    made = document("ResNet50", flags, application("ResNet50", flags))
    assert made["metadata"] == {"name": "pictures"}
    assert made["spec"] == {
        "accelerator": {"type": "v5e", "topology": "2x4", "provisioning": "Spot"}, "workers": 1,
        "precision": {"policy": "Auto"}, "program": {"application": {"name": "ResNet50", "classes": 5}},
        "data": {"train": ["gs://b/train-*"], "validation": ["gs://b/val-*"], "label": "species"},
        "training": {"epochs": 5, "batchSize": {"global": 32}}, "output": {"uri": "gs://b/run"},
        "podTemplate": {"image": "registry/own:1"},
    }  # fmt: skip
    each = document("ResNet50", replace(flags, batch_size=None, batch_size_per_replica=4), {})
    assert each["spec"]["training"]["batchSize"] == {"perReplica": 4}
    with pytest.raises(InvalidSpec, match="--batch-size-per-replica: given together with --batch-size; expected one"):
        document("ResNet50", replace(flags, batch_size_per_replica=4), {})


def test_only_given_options_are_in_the_job() -> None:
    made = document("train.py", Flags(), {"script": {"path": "train.py"}})
    assert made["metadata"] == {"generateName": "train-"}
    assert made["spec"] == {"accelerator": {"type": "cpu"}, "program": {"script": {"path": "train.py"}}}
    with pytest.raises(InvalidSpec, match="Did you mean 'v100'"):
        document("train.py", Flags(accelerator="v10"), {})


def test_options_of_a_program_are_refused_with_a_file() -> None:
    refuse_flags_of_program("job.yaml", Flags(run_folder="runs/x"))
    with pytest.raises(InvalidSpec, match=re.escape("it cannot be combined with --count, --batch-size, ARGUMENTS")):
        refuse_flags_of_program("job.yaml", Flags(count=2, batch_size=3, run_folder="x", arguments=("x",)))
