"""Both generations of Keras, on four logical CPU devices."""

from __future__ import annotations

from tests.testbed.keras_generations import forks, keras, keras3, keras_of_no_child  # noqa: F401
