"""The chart, rendered by the real helm for a given Kubernetes version."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.testbed.binaries import binary
from tests.testbed.kubernetes.installation import SYSTEM

CHART = Path(__file__).parents[3] / "charts" / "mptraining"
RELEASE = "mptraining"
KUBERNETES = "1.34.4"
# As in manifests/install.yaml.
REGISTRY = "registry.invalid"
# Values that render every object and every part of one.
EVERYTHING: dict[str, Any] = {
    "namespace": {"create": True},
    "commonLabels": {"team": "platform"},
    "global": {"imageRegistry": "mirror.example", "imagePullSecrets": [{"name": "pull"}]},
    "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "a@b"}},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "podLabels": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}], "egress": [{"ports": [{"port": 443}]}]},
    "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")},
    "settings": {
        "namespaces": ["team-a", "team-b"],
        "runtimes": {
            "default": {
                "limits": {"accelerators": ["t4"], "registries": ["gcr.io/team"], "workersPerNamespace": 8},
                "httpsProxy": "http://proxy:3128",
                "caConfigMap": "authorities",
                "output": "gs://runs",
            }
        },
        "gangSchedulers": {"volcano": "volcano", "coscheduling": "coscheduling"},
        "deviceClasses": {"t4": "t4.example.com"},
    },
}


class Refused(Exception):
    """A refusal in helm's own words."""


def render(
    values: dict[str, Any] | None = None,
    *,
    release: str = RELEASE,
    kubernetes: str = KUBERNETES,
    tests: bool = False,
    chart: Path = CHART,
) -> str:
    """Return the manifests of an installation in the operator's namespace, with a registry unless `values` has global.

    Raises Refused when helm refuses.
    """
    command = [str(binary("helm")), "template", release, str(chart), "--namespace", SYSTEM, "--values", "-"]
    command += ["--kube-version", kubernetes, *([] if tests else ["--skip-tests"])]
    text = yaml.safe_dump({"global": {"imageRegistry": REGISTRY}, **(values or {})})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of rendered manifests."""
    # With libyaml: the resource alone takes the other loader a third of a second.
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
