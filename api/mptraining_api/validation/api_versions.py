"""API versions of the resources; docs/guide/operate.md has the policy ("Upgrades and versions").

All served versions have the same schema, because the CustomResourceDefinitions have no conversion but that of
`apiVersion` itself (`spec.conversion.strategy: None`): the API server drops every field that the version of a request
does not have, and with the next write it is lost in etcd too. A better name is therefore a second, optional field in
all versions; the operator reads both, and a rule refuses a job that has both. The old name goes away with its version.

The way from v1alpha1 to v1beta1 takes two releases. The first serves both (`SERVED = ("v1beta1", "v1alpha1")`) and
allows a downgrade. The second stores v1beta1 (`VERSION`). An administrator then writes every object again with an empty
merge patch, removes v1alpha1 from `status.storedVersions` of both definitions, and replaces the version in the owner
references of children, by which the garbage collector looks owners up. Only then may a release serve v1beta1 alone.
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
