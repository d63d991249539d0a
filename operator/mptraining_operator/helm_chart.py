"""The files of charts/mptraining that follow from models; `python -m mptraining_operator.helm_chart` writes them.

values.yaml           every value with its default and meaning, in the comments that helm-docs reads
values.schema.json    their types, which `helm install` checks
files/crd.yaml        the CustomResourceDefinition, as in manifests/crd.yaml
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from mptraining_api import crd
from mptraining_api.model import Model
from mptraining_operator.settings import OperatorSettings

Labels = dict[str, str]
# By these the Deployment, the Services and the NetworkPolicy find the replicas, and Helm its own objects.
_OURS = [f"app.kubernetes.io/{name}" for name in ("name", "instance", "part-of", "version", "managed-by")]
OtherLabels = Annotated[Labels, Field(json_schema_extra={"propertyNames": {"not": {"enum": _OURS}}})]
Object = dict[str, Any]
# A name of an object, or nothing.
Called = Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
# Other than a Called, it is a Service's too.
FullName = Annotated[str, StringConstraints(max_length=55, pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$")]
# A host with a port and folders, or nothing; no URL.
Registry = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._-]+)*/?)?$")]
Repository = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Tag = Annotated[str, StringConstraints(max_length=128)]
Digest = Annotated[str, StringConstraints(pattern=r"^([a-z0-9+._-]+:[0-9a-f]{32,})?$")]
Quantities = dict[str, str | int | float]


class PullSecret(Model):
    name: str


class Global(Model):
    """Helm hands these to every chart of a release; it has names of its own there too."""

    model_config = ConfigDict(extra="allow")

    image_registry: Registry = Field("", description="Registry of all images that say nothing else, such as a mirror.")
    image_pull_secrets: tuple[PullSecret, ...] = Field(
        (), description="Secrets to pull the operator's image with; those of jobs are `settings.pods`."
    )


class NamespaceValues(Model):
    create: bool = Field(False, description="Make the namespace too: for `helm template`, with no Helm to make it.")
    labels: Labels = Field({"pod-security.kubernetes.io/enforce": "restricted"}, description="Its labels.")


class Crds(Model):
    install: bool = Field(True, description="Install and upgrade the resource; false leaves it to others.")
    keep: bool = Field(True, description="Leave it where it is on `helm uninstall`. Without it all jobs go, too.")


class OperatorImage(Model):
    registry: Registry = Field("", description="Registry. Empty: `global.imageRegistry`, else the runtime's default.")
    repository: Repository = Field("mptraining/operator", description="Name in the registry.")
    tag: Tag = Field("", description="Empty: the chart's appVersion.")
    digest: Digest = Field("", description="Wins over the tag.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field("IfNotPresent", description="As in a container.")


class Suffixes(Model):
    cpu: str = Field("", description="For jobs on CPUs.")
    gpu: str = Field("-gpu", description="For jobs on GPUs.")
    tpu: str = Field("-tpu", description="For jobs on TPUs.")


class TrainerImage(Model):
    """The images of jobs that name none; `settings.trainerImage` and `settings.trainerImages` win over it."""

    registry: Registry = Field("", description="Registry. Empty: `global.imageRegistry`, else the runtime's default.")
    repository: Repository = Field("mptraining/trainer", description="Name in the registry.")
    tag: Tag = Field("", description="Empty: the chart's appVersion.")
    suffixes: Suffixes = Field(Suffixes(), description="What follows the tag, by the kind of accelerator.")


class ServiceAccount(Model):
    create: bool = Field(True, description="Make the account.")
    name: Called = Field("", description="Empty: the name of the Deployment.")
    annotations: Labels = Field({}, description="Annotations of the account.")


class Rbac(Model):
    create: bool = Field(True, description="Make roles and bindings; in `settings.namespaces` alone, where given.")
    user_roles: bool = Field(True, description="Let the ClusterRoles view, edit and admin reach jobs.")


class Resources(Model):
    requests: Quantities = Field(
        {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "16Mi"}, description="As in a container."
    )
    limits: Quantities = Field(
        {"memory": "512Mi", "ephemeral-storage": "128Mi"},
        description="As in a container. Without a limit of CPU time: throttled, a leader loses its Lease.",
    )


class PodDisruptionBudget(Model):
    enabled: bool = Field(True, description="Keep one replica while nodes are drained; with two or more replicas.")


class NetworkPolicy(Model):
    enabled: bool = Field(True, description="Let only the pods of jobs report, and only `metricsFrom` ask for metrics.")
    metrics_from: tuple[Object, ...] = Field(
        (), description="Peers (as in a NetworkPolicy) that may read metrics. Empty: all."
    )
    egress: tuple[Object, ...] = Field(
        (),
        description="Rules (as in a NetworkPolicy) for the way to the API server. Empty: all.",
    )


class ServiceMonitor(Model):
    enabled: bool = Field(False, description="Make a ServiceMonitor; needs the Prometheus operator.")
    interval: str = Field("30s", description="Between two scrapes.")
    labels: Labels = Field({}, description="Extra labels, by which Prometheus finds it.")


class PrometheusRule(Model):
    enabled: bool = Field(False, description="Make alerts; needs the Prometheus operator.")
    labels: Labels = Field({}, description="Extra labels, by which Prometheus finds it.")


class Dashboard(Model):
    enabled: bool = Field(False, description="Make a ConfigMap with a Grafana dashboard.")
    labels: Labels = Field({"grafana_dashboard": "1"}, description="By which Grafana's sidecar finds it.")
    annotations: Labels = Field({}, description="Such as the folder for the sidecar.")


class MetricsValues(Model):
    annotations: bool = Field(True, description="Annotate pods with prometheus.io/scrape and port.")
    service_monitor: ServiceMonitor = Field(ServiceMonitor(), description="For the Prometheus operator.")
    prometheus_rule: PrometheusRule = Field(PrometheusRule(), description="Alerts.")
    dashboard: Dashboard = Field(Dashboard(), description="For Grafana.")


class ChartValues(Model):
    """Everything that `helm install --set` may say."""

    global_: Global = Field(Global(), alias="global", description="Shared by all charts of a release.")
    fullname_override: FullName = Field("", description="Name of the objects. Empty: `<release>-operator`.")
    common_labels: OtherLabels = Field({}, description="Extra labels of every object.")
    namespace: NamespaceValues = Field(NamespaceValues(), description="The operator's namespace.")
    crds: Crds = Field(Crds(), description="The CustomResourceDefinition.")
    replicas: Annotated[int, Field(ge=1, le=10)] = Field(2, description="One leads, all take progress reports.")
    image: OperatorImage = Field(OperatorImage(), description="The operator's image.")
    trainer: TrainerImage = Field(TrainerImage(), description="The images of jobs that name none.")
    service_account: ServiceAccount = Field(ServiceAccount(), description="Whom the operator is to the API server.")
    rbac: Rbac = Field(Rbac(), description="What it may do there.")
    resources: Resources = Field(Resources(), description="Of each replica.")
    priority_class_name: Called = Field("", description="Priority class of the replicas.")
    node_selector: Labels = Field({}, description="As in a pod.")
    tolerations: tuple[Object, ...] = Field((), description="As in a pod.")
    affinity: Object = Field({}, description="As in a pod.")
    topology_spread_constraints: tuple[Object, ...] = Field(
        (), description="As in a pod. Empty: spread over nodes and zones where that is possible."
    )
    pod_labels: OtherLabels = Field({}, description="Extra labels of the replicas.")
    pod_annotations: Labels = Field({}, description="Extra annotations of the replicas.")
    extra_env: tuple[Object, ...] = Field((), description="Extra variables of the replicas, as in a container.")
    pod_disruption_budget: PodDisruptionBudget = Field(PodDisruptionBudget(), description="For drained nodes.")
    network_policy: NetworkPolicy = Field(NetworkPolicy(), description="Who reaches the replicas.")
    metrics: MetricsValues = Field(MetricsValues(), description="Who watches the operator.")
    settings: OperatorSettings = Field(OperatorSettings(), description="The operator's own settings.")


_BY = "python -m mptraining_operator.helm_chart"
_HEAD = f"# Generated by `{_BY}`: edit chart_values.py and settings.py, not this file.\n"


def values_yaml() -> str:
    """values.yaml: a value's comment begins with `--`, a section's does not."""
    return _HEAD + "".join(f"{line}\n" for line in _lines(ChartValues(), ""))


def _lines(values: Model, indent: str) -> Iterator[str]:
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, Model):
            if not indent:
                yield ""
            yield f"{indent}# {field.description}"
            yield f"{indent}{field.alias}:"
            yield from _lines(value, f"{indent}  ")
        else:
            # Of a null helm-docs cannot tell what it stands for.
            kind = "(int) " if value is None and _is_integer(values, str(field.alias)) else ""
            yield f"{indent}# -- {kind}{field.description}"
            # JSON is YAML, and quotes what must be.
            yield f"{indent}{field.alias}: {json.dumps(value)}"


def _is_integer(values: Model, name: str) -> bool:
    options = type(values).model_json_schema(by_alias=True)["properties"][name].get("anyOf", ())
    return any(each.get("type") == "integer" for each in options)


def values_schema() -> str:
    """values.schema.json."""
    schema = ChartValues.model_json_schema(by_alias=True)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def files() -> dict[str, str]:
    """The text of each file, by its path in the chart."""
    return {"values.yaml": values_yaml(), "values.schema.json": values_schema(), "files/crd.yaml": crd.to_yaml()}


def main(arguments: list[str] | None = None) -> int:
    """Writes the files; with --check, 1 when one of them is stale."""
    parser = argparse.ArgumentParser(prog=_BY, description="The files of the chart that follow from models.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("charts/mptraining"), help="the chart")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    chosen = parser.parse_args(arguments)
    stale = 0
    for name, text in files().items():
        file: Path = chosen.folder / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if chosen.check:
            sys.stderr.write(f"{file}: stale. Run: make manifests\n")
            stale = 1
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
