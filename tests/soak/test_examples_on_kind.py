"""Every example of manifests/examples runs to its end on CPUs, with small records in a bucket of the cluster.

The test changes the size of a step and the number of epochs, the size of pictures, weights that would be downloaded
(random ones are in the bucket instead), and resources that two cores do not have. Programs, strategies, sources and
sections are unchanged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kind import buckets

# 10 minutes on an idle machine with 2 cores: part of `make soak`.
FOLDER = Path(__file__).parents[2] / "manifests" / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "digits")
DIGITS = "/opt/mptraining/digits"
# Divisible by 1, 2 and 3 workers, by the requested replicas, 16 at most, and by the accumulated parts of a step.
BATCH = 48
WEIGHTS = "weights/EfficientNetV2B0.weights.h5"
MAKE_WEIGHTS = """
import sys, keras
keras.applications.EfficientNetV2B0(include_top=False, weights=None, input_shape=(32, 32, 3)).save_weights(sys.argv[1])
"""


@pytest.fixture(scope="module")
def storage(kind: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("buckets")
    weights = folder / "data" / "my-bucket" / WEIGHTS
    weights.parent.mkdir(parents=True)
    subprocess.run([sys.executable, "-c", MAKE_WEIGHTS, str(weights)], check=True, timeout=120)
    buckets.start(kind, folder)
    sources = {"flowers-source": "flowers.py", "digits-source": "train.py"}
    for name, file in sources.items():
        code = {file: (FOLDER / "source" / file).read_text()}
        kind.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": code})


def small(document: dict[str, Any]) -> dict[str, Any]:
    """Return the example with the changes that this cluster needs."""
    spec = document["spec"]
    name = document["metadata"]["name"]
    if not spec["output"]["uri"].startswith("gs://"):
        spec["output"]["uri"] = f"gs://my-bucket/runs/{name}"
    if "data" in spec:
        spec["training"] |= {"epochs": 1, "batchSize": {"global": BATCH}, "learningRateScaling": {"rule": "None"}}
        for split in ("train", "validation"):
            spec["data"][split] = [each.replace("digits/", f"{DIGITS}/", 1) for each in spec["data"][split]]
    if "application" in spec["program"]:
        if spec["program"]["application"].get("weights") == "imagenet":
            spec["program"]["application"]["weights"] = f"gs://my-bucket/{WEIGHTS}"
        for feature in spec.get("data", {}).get("features", ()):
            if "resize" in feature:
                feature["resize"] = [32, 32]
    pods = spec.setdefault("podTemplate", {})
    pods["env"] = [{"name": "STORAGE_EMULATOR_HOST", "value": buckets.ADDRESS}]
    pods.pop("resources", None)
    return document


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(kind: Any, storage: None, path: Path) -> None:
    document = small(yaml.safe_load(path.read_text(encoding="utf-8")))
    name = document["metadata"]["name"]
    kind.apply(document)
    try:
        status = kind.finished(name, seconds=600)
        assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
        said = [json.loads(line) for line in kind.logs(name).splitlines() if line.startswith('{"mptraining"')]
        (last,) = (each for each in said if each["kind"] == "Finished" and each["worker"] == 0)
        assert last["reason"] == "Succeeded"
    finally:
        kind.kubectl("delete", "-n", kind.namespace, f"mptj/{name}", "--timeout=300s")
