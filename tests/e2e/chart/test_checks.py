"""kube-score's checks of the chart."""

from __future__ import annotations

import functools
import json
import subprocess

import pytest

from tests.testbed.binaries import binary
from tests.testbed.kubernetes.chart import EVERYTHING, render


@functools.cache
def rendered(everything: bool) -> str:
    return render(EVERYTHING if everything else {}, tests=True)


# What kube-score asks for -> why not.
EXCEPTIONS = {
    "container-resources": "a throttled leader cannot renew its Lease and is replaced; the request keeps its share",
    "container-image-pull-policy": "released images have a tag for each version, and a node that has one needs no "
    "registry to start a replica; `image.pullPolicy` sets it",
    "container-security-context-user-group-id": "the images' user is 1000; user namespaces solve a shared uid, and no "
    "path of the node is mounted",
    "pod-networkpolicy": "only the cluster knows the API server's address; `networkPolicy.egress` takes it. The pod of "
    "`helm test` runs for seconds and listens on no port",
    "deployment-has-host-podantiaffinity": "topologySpreadConstraints do it, over nodes and zones; a required "
    "anti-affinity leaves a replica pending on a single node, and an upgrade unfinished on two",
}


@pytest.mark.parametrize("everything", [False, True])
def test_kube_score_finds_nothing_but_the_exceptions(everything: bool) -> None:
    expected = set(EXCEPTIONS)
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
