"""The lines to write instead of short forms; a range of nodes is `elastic`, as a CRD's schema has no unions."""

from __future__ import annotations

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import MPTrainingJob
from mptraining_api.validation.short_forms import for_value


def test_a_range_of_nodes_is_refused() -> None:
    spec = {"accelerator": {"type": "nvidia-l4"}, "nodes": {"min": 2, "max": 8}}
    with pytest.raises(InvalidSpec, match=r"spec\.nodes"):
        MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": spec})


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("spec", "nodes"), {"min": 2, "max": 8}, "Write elastic: {min: 2, max: 8} in spec, without nodes."),
        (("spec", "nodes"), "2-8", "Write elastic: {min: 2, max: 8} in spec, without nodes."),
        (("spec", "nodes"), "two", ""),
        (("spec", "elastic"), "2-8", "Write elastic: {min: 2, max: 8}"),
        (("spec", "elastic"), 4, "Write elastic: {min: 1, max: 4}"),
        (("spec", "elastic"), True, "Write elastic: {min: 1, max: 8}"),
        (("spec", "scheduling", "gang"), "Kueue",
         "Kueue admits all workers of a job that names a queue: write scheduling: {queueName: NAME}, without gang."),
        (("spec", "scheduling", "gang"), "Slurm", ""),
    ],
)  # fmt: skip
def test_a_short_form_gets_the_line_to_write(path: tuple[str | int, ...], value: object, line: str) -> None:
    assert for_value(path, value) == line


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"podTemplate": {"sidecars": []}},
         "spec.podTemplate.sidecars: unknown field. Write initContainers; a container with restartPolicy: Always is "
         "a sidecar."),
        ({"accelerator": {"type": "nvidia-l4", "deviceClass": "l4"}},
         "spec.accelerator.deviceClass: unknown field. DeviceClasses are a setting of the operator, deviceClasses, "
         "which the administrator changes."),
    ],
)  # fmt: skip
def test_a_field_of_others_is_refused_with_what_is_here(spec: dict[str, object], line: str) -> None:
    base = {"accelerator": {"type": "nvidia-l4"}, "program": {"script": {"path": "train.py"}}}
    with pytest.raises(InvalidSpec) as caught:
        MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": base | spec})
    assert str(caught.value) == line
