"""JSON schemas of Kubernetes' objects for kubeconform: `python -m hack.cluster.schemas` puts them into build/schemas.

They are made of `api/openapi-spec/swagger.json` of the Go modules `k8s.io/kubernetes`, for the oldest release that is
promised, two in between and the newest; a version that is there is not made again. Unknown fields are refused. The
schema of an MPTrainingJob comes from charts/mptraining/files/crd.yaml.

    build/schemas/v1.34.4/deployment-apps-v1.json
    build/schemas/mptrainingjob-mptraining-v1alpha1.json
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from hack.cluster.binaries import NEWEST, OLDEST, TESTED

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "schemas"
VERSIONS = (f"v{OLDEST}", f"v{TESTED}", f"v{NEWEST}")

# What the chart, the examples and the operator make; another kind is an error of kubeconform, and is added here.
KINDS = {
    *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "Deployment", "Job", "Namespace"),
    *(
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Pod",
        "PodDisruptionBudget",
        "PriorityClass",
        "Role",
        "RoleBinding",
        "Secret",
    ),
    *("Service", "ServiceAccount"),
}

_PREFIX = "#/definitions/"
# The OpenAPI document calls them strings; YAML writes them as numbers, too.
_LOOSE = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}
# Free JSON, and schemas, which contain themselves.
_ANY = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON"


def swagger(version: str) -> dict[str, Any]:
    """The OpenAPI document of that release. Raises RuntimeError with Go's words when it cannot be had."""
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"]
    # Outside any module of this folder.
    done = subprocess.run(command, cwd=ROOT / "build", capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout or done.stderr}")
    file = Path(json.loads(done.stdout)["Dir"]) / "api" / "openapi-spec" / "swagger.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def strict(schema: Any) -> Any:
    """The schema with no field but those that it names."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        return {"$ref": schema["$ref"]}
    result = {key: strict(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        # Names of fields, which may be those of keywords.
        result["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
            result["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["string", "integer"]
    return result


def files(document: dict[str, Any]) -> dict[str, Any]:
    """Name of the file -> schema with all that it refers to, for each of the kinds."""
    definitions = {name: _LOOSE.get(name) or strict(schema) for name, schema in document["definitions"].items()}
    definitions[_ANY] = {}
    found: dict[str, Any] = {}
    for name, schema in document["definitions"].items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            if kind["kind"] not in KINDS:
                continue
            group = kind["group"].split(".")[0]
            parts = [kind["kind"].lower(), *([group] if group else []), kind["version"]]
            pinned = {
                "apiVersion": {"const": "/".join(part for part in (kind["group"], kind["version"]) if part)},
                "kind": {"const": kind["kind"]},
            }
            found["-".join(parts) + ".json"] = {
                "$ref": f"{_PREFIX}{name}",
                "definitions": {each: definitions[each] for each in sorted(reached(name, definitions))},
                "properties": pinned,
                "required": ["apiVersion", "kind"],
            }
    return found


def reached(name: str, definitions: dict[str, Any]) -> set[str]:
    """The definition and all that it refers to."""
    found, waiting = {name}, [definitions[name]]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            reference = each.get("$ref")
            if isinstance(reference, str) and (target := reference.removeprefix(_PREFIX)) not in found:
                found.add(target)
                waiting.append(definitions[target])
            waiting += each.values()
    return found


def training_job(crd: dict[str, Any]) -> dict[str, Any]:
    """The schema of the first version of a CustomResourceDefinition."""
    found: dict[str, Any] = strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    found["properties"]["metadata"] = {"type": "object"}
    return found


def is_complete(folder: Path) -> bool:
    """Return whether the folder has every kind; one of an earlier version may lack some."""
    return {kind.lower() for kind in KINDS} <= {file.name.partition("-")[0] for file in folder.glob("*.json")}


def write(folder: Path, schemas: dict[str, Any]) -> None:
    """All of them or none: a folder that is there is whole."""
    shutil.rmtree(folder, ignore_errors=True)
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for name, schema in schemas.items():
        (unfinished / name).write_text(json.dumps(schema), encoding="utf-8")
    unfinished.replace(folder)


def main() -> int:
    if shutil.which("go") is None:
        sys.stderr.write("no Go to fetch Kubernetes' OpenAPI documents with\n")
        return 3
    FOLDER.mkdir(parents=True, exist_ok=True)
    for version in VERSIONS:
        if not is_complete(FOLDER / version):
            write(FOLDER / version, files(swagger(version)))
    crd = yaml.safe_load((ROOT / "charts/mptraining/files/crd.yaml").read_text(encoding="utf-8"))
    own = FOLDER / "mptrainingjob-mptraining-v1alpha1.json"
    own.write_text(json.dumps(training_job(crd)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
