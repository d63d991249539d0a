"""A search with KerasTuner on four nodes of a real cluster: an oracle, whose pod is evicted once, and three tuners."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kind.test_on_kind import CLAIM, EXAMPLES, events, image
from tests.testbed.nodes.pods import RESTRICTED
from tests.training.tuner_script import BEST, tuner_script

TRIALS = 12
SCRIPT = tuner_script(trials=TRIALS, rows=2048, columns=16, units=(8, 256), highest_rate=1e-2, epochs=10) + BEST
# The pod below prints the states of the trials as the oracle has stored them.
READ = """
import json, pathlib
project = pathlib.Path("/runs/tune/tuner/my_dir/hello")
print(json.dumps({path.parent.name: json.loads(path.read_text()) for path in project.glob("trial_*/trial.json")}))
"""


def source() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a ConfigMap with the script and KerasTuner, which the image does not have, and the job's source."""
    spec = importlib.util.find_spec("keras_tuner")
    assert spec is not None
    assert spec.origin is not None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        about = tarfile.TarInfo("tune.py")
        about.size = len(SCRIPT)
        archive.addfile(about, io.BytesIO(SCRIPT.encode()))
        archive.add(
            Path(spec.origin).parent,
            "keras_tuner",
            filter=lambda each: None if "__pycache__" in each.name else each,
        )
    data = packed.getvalue()
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tune"},
        "binaryData": {"source.tgz": base64.b64encode(data).decode()},
    }
    return config_map, {"configMap": {"name": "tune", "sha256": hashlib.sha256(data).hexdigest()}}


def stored_trials(kind: Any, number: int) -> dict[str, Any]:
    """Return the state of each trial in the run folder, read by a separate pod."""
    name = f"read-trials-{number}"
    container = {
        "name": "read",
        "image": image(kind),
        "command": ["python", "-c", READ],
        "volumeMounts": CLAIM["volumeMounts"],
        "securityContext": RESTRICTED,
    }
    pod = {"restartPolicy": "Never", "volumes": CLAIM["volumes"], "containers": [container]}
    kind.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})
    phase = "--for=jsonpath={.status.phase}=Succeeded"
    kind.kubectl("wait", "-n", kind.namespace, f"pod/{name}", phase, "--timeout=300s")
    found: dict[str, Any] = json.loads(kind.kubectl("logs", "-n", kind.namespace, name).splitlines()[-1])
    return found


def test_a_search_continues_after_its_oracle_was_evicted(kind: Any) -> None:
    pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
    kind.kubectl("apply", "-n", kind.namespace, "-f", str(EXAMPLES / "digits.yaml"))
    config_map, shipped = source()
    kind.apply(config_map)
    kind.job(
        "tune",
        accelerator={"type": "nvidia-tesla-t4"},
        nodes=4,
        program={"script": {"path": "tune.py", "tuner": "KerasTuner"}},
        source=shipped,
        output={"uri": "/runs/tune"},
        podTemplate=CLAIM,
    )
    deadline = time.monotonic() + 900
    while not any(each.get("totalSteps") and each["step"] >= 3 for each in events(kind.logs("tune", 1), "Progress")):
        assert time.monotonic() < deadline, kind.logs("tune")[-3000:]
        time.sleep(0.5)
    pod = kind.get("pods", "-l", "mptraining.dev/job=tune,batch.kubernetes.io/job-completion-index=0")["items"][0]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    path = f"/api/v1/namespaces/{kind.namespace}/pods/{pod['metadata']['name']}/eviction"
    kind.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    kind.until("tune", lambda status: status.get("currentAttempt") == 2)
    kept = {name: each for name, each in stored_trials(kind, 1).items() if each["status"] == "COMPLETED"}
    status = kind.finished("tune", seconds=1200)
    assert [each["outcome"] for each in status["attempts"]] == ["Preempted", "Succeeded"]
    assert (status["workers"], status["replicasInSync"], status["strategy"]) == (4, 1, "None")
    trials = stored_trials(kind, 2)
    assert len(kept) >= 3
    assert len(trials) == TRIALS
    assert {each["status"] for each in trials.values()} == {"COMPLETED"}
    assert {name: trials[name] for name in kept} == kept, "a trial that had ended does not run again"
    best = min(each["score"] for each in trials.values())
    # The trial that ends last may not be the best one: the last report, which is, may come after the job's end.
    kind.until("tune", lambda status: _reported(status).get("val_loss") == pytest.approx(best), seconds=60)


def _reported(status: dict[str, Any]) -> dict[str, float]:
    progress = status.get("progress") or {}
    done = progress.get("percentComplete") == 100
    return {each["name"]: float(each["value"]) for each in progress["metrics"]} if done else {}
