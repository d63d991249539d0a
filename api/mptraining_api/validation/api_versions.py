"""API versions of the resources; docs/versioning.md has the policy and the steps to the next version.

All served versions have the same schema, because the CustomResourceDefinitions have no conversion but that of
`apiVersion` itself (`spec.conversion.strategy: None`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

GROUP = "mptraining.dev"
# The version that is stored, and that operator and client request.
VERSION = "v1alpha1"
# The versions that the API server serves and that job files may have, newest first.
SERVED: tuple[str, ...] = ("v1alpha1",)
API_VERSION = f"{GROUP}/{VERSION}"

if TYPE_CHECKING:
    ApiVersion = str
else:
    ApiVersion = Literal[tuple(f"{GROUP}/{version}" for version in SERVED)]


def is_served(api_version: object) -> bool:
    """Return whether `api_version`, as GROUP/VERSION, is one that a file may have."""
    return api_version in [f"{GROUP}/{version}" for version in SERVED]
