"""Both generations of Keras, on four logical CPU devices."""

from __future__ import annotations

import pytest

from tests.testbed.keras_generations import in_generations, keras, keras3, keras_of_no_child  # noqa: F401
from tests.training.callback_runs import data, generation, train  # noqa: F401
from tests.training.script_runs import alone, through_us  # noqa: F401


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    in_generations(metafunc)
