"""A range of nodes is written as `elastic`: the API server's schemas have no field that is a number or an object."""

from __future__ import annotations

import pytest

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import MPTrainingJob
from mptraining_api.validation.short_forms import for_value


def test_a_range_of_nodes_is_refused_with_the_line_to_write() -> None:
    spec = {"accelerator": {"type": "nvidia-l4"}, "nodes": {"min": 2, "max": 8}}
    with pytest.raises(InvalidSpec, match=r"spec\.nodes"):
        MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": spec})
    found = for_value(("spec", "nodes"), {"min": 2, "max": 8})
    assert found == "Write elastic: {min: 2, max: 8} in spec, without nodes."
