"""The source in a pod, for each way to provide it."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.launch import CONFIG_MAP_FOLDER, PACKAGES_FOLDER, SOURCE_FOLDER
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.resources.volumes import SourceParts, source_parts

FUNCTION = {"function": {"entryPoint": "flowers:build"}}
SCRIPT = {"script": {"path": "train.py"}}
CONFIG_MAP = {"configMap": {"name": "code"}}
PACKED = {"configMap": {"name": "code", "sha256": "0" * 64}}
ARCHIVE = {"archive": {"uri": "gs://bucket/code.tgz", "sha256": "0" * 64}}
REQUIREMENTS = {"requirements": "requirements.txt"}


def parts(source: dict[str, Any] | None, program: dict[str, Any] = FUNCTION) -> SourceParts:
    spec = {"accelerator": {"type": "cpu"}, "program": program, "source": source}
    if program is FUNCTION:
        spec["data"] = {"train": ["gs://bucket/train"]}
    return source_parts(resolve(MPTrainingJob.parse({"metadata": {"name": "a"}, "spec": spec}), ClusterSettings()))


@pytest.mark.parametrize("source", [None, {}])
def test_code_in_the_image_needs_nothing(source: dict[str, Any] | None) -> None:
    assert parts(source) == SourceParts()


def test_a_config_map_is_mounted_as_it_is() -> None:
    found = parts(CONFIG_MAP)
    assert not found.prepared
    assert found.trainer_mounts == ({"name": "mptraining-source", "mountPath": "/source/files", "readOnly": True},)
    assert found.volumes == ({"name": "mptraining-source", "configMap": {"name": "code"}},)


@pytest.mark.parametrize(
    ("source", "program", "given"),
    [
        (CONFIG_MAP, SCRIPT, {SOURCE_FOLDER, CONFIG_MAP_FOLDER}),
        (CONFIG_MAP | REQUIREMENTS, FUNCTION, {SOURCE_FOLDER, CONFIG_MAP_FOLDER, PACKAGES_FOLDER}),
        (PACKED, FUNCTION, {SOURCE_FOLDER, CONFIG_MAP_FOLDER}),
        (ARCHIVE, FUNCTION, {SOURCE_FOLDER}),
        (ARCHIVE | REQUIREMENTS, SCRIPT, {SOURCE_FOLDER, PACKAGES_FOLDER}),
        (REQUIREMENTS, FUNCTION, {PACKAGES_FOLDER}),
    ],
)
def test_what_must_be_prepared_gets_a_volume_of_its_own(
    source: dict[str, Any], program: dict[str, Any], given: set[str]
) -> None:
    found = parts(source, program)
    assert found.prepared
    assert set(found.init_environment) == given
    assert found.volumes[0] == {"name": "mptraining-source", "emptyDir": {}}
    assert found.trainer_mounts == ({"name": "mptraining-source", "mountPath": "/source"},)
    assert {each["name"] for each in found.init_mounts} == {each["name"] for each in found.volumes}
    assert bool(found.python_path) == (PACKAGES_FOLDER in given)


@pytest.mark.parametrize("source", [CONFIG_MAP, CONFIG_MAP | REQUIREMENTS, ARCHIVE])
def test_the_program_is_found_in_the_same_place_always(source: dict[str, Any]) -> None:
    assert parts(source).trainer_environment == {SOURCE_FOLDER: "/source/files"}


def test_without_files_the_program_is_run_from_the_image() -> None:
    assert parts(REQUIREMENTS).trainer_environment == {}
