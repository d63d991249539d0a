"""The Kubernetes of the kind cluster: 1.34, or the release in MPTRAINING_KUBERNETES, whose cluster has its own name.

The clusters of two releases can run at the same time: neither's nodes, kubeconfig and claims are the other's.
"""

from __future__ import annotations

import os

from hack.cluster.binaries import NEWEST, TESTED

VARIABLE = "MPTRAINING_KUBERNETES"
DEFAULT = TESTED.rpartition(".")[0]
RELEASE = os.environ.get(VARIABLE) or DEFAULT
# Those that kind/node_image builds. None for another: tests of its control plane alone import this module, too.
VERSION = {each.rpartition(".")[0]: each for each in (TESTED, NEWEST)}.get(RELEASE)
_SUFFIX = "" if RELEASE == DEFAULT else f"-{RELEASE}"
# A node's name is a host name.
NAME = f"mptraining{_SUFFIX.replace('.', '-')}"
# Under build/ and under kind.engine.STATE.
KUBECONFIG_FOLDER = f"cluster{_SUFFIX}"
CLAIMS_FOLDER = f"claims{_SUFFIX}"
NODE_IMAGE = f"localhost/kindest-node:v{VERSION}"
