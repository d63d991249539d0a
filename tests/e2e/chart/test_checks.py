"""Other people's checks of what the chart, the manifests and the operator make: helm lint, kubeconform, kube-score.

Kubernetes' own schemas of three releases are made by `hack.cluster.schemas` and kept in build/schemas.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.schemas import FOLDER, VERSIONS
from tests.testbed.binaries import binary
from tests.testbed.kubernetes.chart import CHART, KUBERNETES, render
from tests.unit.operator.resources.test_golden_objects import FOLDER as FOLDER_OF_CHILDREN
from tests.unit.operator.resources.test_golden_objects import children, golden

ROOT = Path(__file__).parents[3]
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
        "limits": {"accelerators": ["t4"], "registries": ["gcr.io/team"], "nodesPerNamespace": 8},
        "pods": {"httpsProxy": "http://proxy:3128", "caConfigMap": "authorities"},
        "defaultOutputs": {"team-a": "gs://a"},
    },
}
# The Prometheus operator's kinds: their schemas are not Kubernetes'.
OTHERS = ("ServiceMonitor", "PrometheusRule")


@functools.cache
def rendered(everything: bool) -> str:
    return render(EVERYTHING if everything else {}, tests=True)


@pytest.fixture(scope="module")
def schemas() -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hack.cluster.schemas"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return FOLDER


def conform(schemas: Path, version: str, text: str) -> dict[str, Any]:
    """kubeconform's answer."""
    name = "{{.ResourceKind}}{{.KindSuffix}}.json"
    command = [str(binary("kubeconform")), "-strict", "-output", "json", "-summary", "-skip", ",".join(OTHERS)]
    command += ["-schema-location", str(schemas / version / name), "-schema-location", str(schemas / name)]
    command += ["-kubernetes-version", version.removeprefix("v")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@functools.cache
def everything_that_is_made() -> str:
    """Chart, manifests, examples, and the children of the golden jobs."""
    parts = [rendered(False), rendered(True), (ROOT / "manifests" / "install.yaml").read_text()]
    parts += [file.read_text() for file in sorted((ROOT / "manifests" / "examples").glob("*.yaml"))]
    parts += [
        yaml.dump_all(json.loads(json.dumps(children(golden(file.stem)))), Dumper=yaml.CSafeDumper)
        for file in sorted(FOLDER_OF_CHILDREN.glob("*.yaml"))
    ]
    return "\n---\n".join(parts)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_conforms_to_kubernetes(schemas: Path, version: str) -> None:
    answer = conform(schemas, version, everything_that_is_made())
    assert answer["resources"] == [], answer["resources"]
    summary = answer["summary"]
    assert (summary["invalid"], summary["errors"], summary["skipped"]) == (0, 0, len(OTHERS))
    assert summary["valid"] > 100


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("backoffLimitPerIndex: 0", "backofLimitPerIndex: 0"),
        ("backoffLimitPerIndex: 0", "backoffLimitPerIndex: none"),
        ("scope: Namespaced", "scop: Namespaced"),
        ("policyTypes:", "policies:"),
        ("accelerator:", "acelerator:"),
    ],
)
def test_a_mistake_is_noticed(schemas: Path, right: str, wrong: str) -> None:
    found = [each for each in re.split(r"^---$", everything_that_is_made(), flags=re.MULTILINE) if right in each]
    assert conform(schemas, VERSIONS[-1], "\n---\n".join(found))["summary"]["invalid"] == 0
    answer = conform(schemas, VERSIONS[-1], "\n---\n".join(found).replace(right, wrong))
    assert answer["summary"]["invalid"] > 0


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_helm_has_nothing_against_the_chart(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(binary("helm")), "lint", "--strict", "--kube-version", KUBERNETES, "--values", str(file), str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def exceptions() -> dict[str, str]:
    """Check of kube-score -> reason, as docs/architecture.md gives it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("| kube-score asks for | Why not |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    rows = [re.fullmatch(r"\| .*?`([\w-]+)`.*? \| (.+) \|", line) for line in table.strip().splitlines()]
    assert all(rows), table
    return {row[1]: row[2] for row in rows if row}


@pytest.mark.parametrize("everything", [False, True])
def test_kube_score_finds_nothing_but_the_exceptions(everything: bool) -> None:
    expected = set(exceptions())
    assert scored(rendered(everything)) == expected
    # Of the resources nothing is missing but that limit.
    assert scored(rendered(everything), "--ignore-container-cpu-limit") == expected - {"container-resources"}


def scored(text: str, *flags: str) -> set[str]:
    """The checks of kube-score that something does not meet."""
    command = [str(binary("kube-score")), "score", "--output-format", "json", "--kubernetes-version", "v1.34", *flags]
    done = subprocess.run([*command, "-"], input=text, capture_output=True, text=True, check=False, timeout=240)
    return {
        check["check"]["id"]
        for each in json.loads(done.stdout)
        for check in each["checks"] or ()
        if not check["skipped"] and check["grade"] < 10
    }
