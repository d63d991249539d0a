"""Random tests: the same short ones at every `make test`, other and many more in `make soak`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Other programs share the processor, so that no single example has a deadline.
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("short", derandomize=True, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("soak", max_examples=2000, deadline=None, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile("short")
