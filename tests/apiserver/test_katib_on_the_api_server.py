"""The Katib experiment of manifests/katib: Katib's types and CRDs, the job of a trial, conditions, metrics, rights."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from tests.left_out import leave_out
from tests.testbed import ControlPlane, Refused

ROOT = Path(__file__).parents[2]
FILES = ROOT / "manifests" / "katib"
# `make servers` makes it from Katib's Go module and from GJSON, with which conditions are evaluated.
KATIB = ROOT / "build" / "katib"
EXPERIMENTS = "/apis/kubeflow.org/v1beta1"
JOBS = "/apis/mptraining.dev/v1alpha1"
Json = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def katib() -> Path:
    if not (KATIB / "gjson").exists():
        leave_out("no build/katib: run `make servers`")
    return KATIB


@pytest.fixture
def experiment() -> Json:
    found: Json = yaml.safe_load((FILES / "experiment.yaml").read_text(encoding="utf-8"))
    return found


def trial_job(experiment: Json, values: dict[str, str], name: str = "digits-abcdefgh") -> Json:
    """Return the job of a trial as Katib's generator makes it: text replaced, then YAML, then the trial's name."""
    source = experiment["spec"]["trialTemplate"]["configMap"]
    config_map = yaml.safe_load((FILES / "trial-template.yaml").read_text(encoding="utf-8"))
    assert (config_map["metadata"]["name"], config_map["metadata"]["namespace"]) == (
        source["configMapName"],
        source["configMapNamespace"],
    )
    text: str = config_map["data"][source["templatePath"]]
    for each in experiment["spec"]["trialTemplate"]["trialParameters"]:
        value = name if each["reference"] == "${trialSpec.Name}" else values[each["reference"]]
        placeholder = f"${{trialParameters.{each['name']}}}"
        assert placeholder in text, "Katib refuses a parameter that the template does not have"
        text = text.replace(placeholder, value)
    assert "${" not in text
    return {**yaml.safe_load(text), "metadata": {"name": name}}


def gjson(document: Json, expression: str) -> Any:
    ended = subprocess.run(
        [KATIB / "gjson", expression],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(ended.stdout or "[]")


def test_the_experiment_has_katib_s_fields(experiment: Json) -> None:
    swagger = json.loads((KATIB / "swagger.json").read_text(encoding="utf-8"))
    definitions = {
        name: each | {"additionalProperties": False} if name.startswith("v1beta1.") and "properties" in each else each
        for name, each in swagger["definitions"].items()
    }
    definitions |= {"v1.ObjectMeta": {"type": "object"}, "v1.unstructured.Unstructured": {"type": "object"}}
    schema = {"definitions": definitions, "$ref": "#/definitions/v1beta1.Experiment"}
    jsonschema.Draft4Validator(schema).validate(experiment)
    experiment["spec"]["trialTemplate"]["sucessCondition"] = ""
    with pytest.raises(jsonschema.ValidationError, match="sucessCondition"):
        jsonschema.Draft4Validator(schema).validate(experiment)


def test_the_experiment_and_its_trials_are_accepted(
    experiment: Json, control_plane: ControlPlane, namespace: str
) -> None:
    for path in sorted(KATIB.glob("*.yaml")):
        control_plane.apply_crd(path)
    control_plane.rest.post(f"{EXPERIMENTS}/namespaces/{namespace}/experiments", _in(experiment, namespace))
    parameters = experiment["spec"]["parameters"]
    for pick in (0, -1):
        values = {parameter["name"]: _extreme(parameter["feasibleSpace"], pick) for parameter in parameters}
        job = trial_job(experiment, values)
        control_plane.rest.post(
            f"{JOBS}/namespaces/{namespace}/mptrainingjobs", job, {"dryRun": "All", "fieldValidation": "Strict"}
        )
        resolved = resolve(MPTrainingJob.parse(job), ClusterSettings())
        assert str(resolved.global_batch_size) == values["batch_size"]
        assert resolved.training is not None
        assert resolved.training.optimizer is not None
        assert (resolved.training.optimizer.config or {})["learning_rate"] == float(values["learning_rate"])
        assert resolved.output == "gs://bucket/digits-search/digits-abcdefgh"


def test_a_trial_ends_with_its_job(experiment: Json) -> None:
    template = experiment["spec"]["trialTemplate"]

    def ends(*conditions: tuple[str, str]) -> tuple[bool, bool]:
        job = {"status": {"conditions": [{"type": type, "status": status} for type, status in conditions]}}
        return bool(gjson(job, template["successCondition"])), bool(gjson(job, template["failureCondition"]))

    assert ends() == (False, False)
    assert ends(("Running", "True")) == (False, False)
    assert ends(("Finished", "True"), ("Complete", "True"), ("Failed", "False")) == (True, False)
    assert ends(("Finished", "True"), ("Complete", "False"), ("Failed", "True")) == (False, True)
    assert not gjson({"metadata": {"name": "new"}}, template["successCondition"])


def test_katib_s_controller_may_run_jobs(experiment: Json, control_plane: ControlPlane, namespace: str) -> None:
    role, binding = yaml.safe_load_all((FILES / "rbac.yaml").read_text(encoding="utf-8"))
    control_plane.service_account(namespace, "katib-controller")
    katib = control_plane.rest_client(control_plane.token(namespace, "katib-controller"))
    values = {each["name"]: _extreme(each["feasibleSpace"], 0) for each in experiment["spec"]["parameters"]}
    path = f"{JOBS}/namespaces/{namespace}/mptrainingjobs"
    with pytest.raises(Refused, match="forbidden"):
        katib.post(path, trial_job(experiment, values))
    groups = "/apis/rbac.authorization.k8s.io/v1"
    control_plane.rest.post(f"{groups}/clusterroles", role)
    try:
        here = [subject | {"namespace": namespace} for subject in binding["subjects"]]
        own = {**binding, "subjects": here}
        control_plane.rest.post(f"{groups}/clusterrolebindings", own)
        katib.post(path, trial_job(experiment, values))
        assert len(katib.get(path)["items"]) == 1
        katib.delete(f"{path}/digits-abcdefgh")
    finally:
        control_plane.rest.delete(f"{groups}/clusterroles/{role['metadata']['name']}")


def _in(document: Json, namespace: str) -> Json:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}


def _extreme(space: Json, pick: int) -> str:
    found: str = space["list"][pick] if "list" in space else [space["min"], space["max"]][pick]
    return found
