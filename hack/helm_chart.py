"""Model of the Helm chart's values, and the generated files of charts/mptraining.

`python -m hack.helm_chart` writes:

values.yaml           all values with default and description, in the comments that helm-docs reads
values.schema.json    their types, which `helm install` checks
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from mptraining_api.model import Model

Labels = dict[str, str]
# The selectors of the Deployment, the Services and the NetworkPolicy, and Helm, use these labels.
_RESERVED_LABELS = [f"app.kubernetes.io/{name}" for name in ("name", "instance", "part-of", "version", "managed-by")]
OtherLabels = Annotated[Labels, Field(json_schema_extra={"propertyNames": {"not": {"enum": _RESERVED_LABELS}}})]
Object = dict[str, Any]
# The name of an object, or empty.
Called = Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
# A name that must also be valid for a Service, with room for suffixes; or empty.
FullName = Annotated[str, StringConstraints(max_length=55, pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$")]
# A host with optional port and path, not a URL; or empty.
Registry = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._-]+)*/?)?$")]
Repository = Annotated[str, StringConstraints(min_length=1, max_length=255)]
# OCI distribution specification, "Pulling manifests".
Tag = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")]
Digest = Annotated[str, StringConstraints(pattern=r"^([a-z0-9+._-]+:[0-9a-f]{32,})?$")]
# The Prometheus operator's Duration.
_DURATION = "".join(f"([0-9]+{unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms"))
Duration = Annotated[str, StringConstraints(min_length=1, pattern=rf"^(0|{_DURATION})$")]


class Global(Model):
    """Global values, which Helm passes to every chart of a release; other charts may define more."""

    model_config = ConfigDict(extra="allow")

    image_registry: Registry = Field(
        "", description="Registry of all images, as HOST/PATH; `docker.io` for images that are on the nodes already."
    )
    image_pull_secrets: tuple[Object, ...] = Field(
        (), description="Image pull secrets of the operator; for jobs, see `settings.runtimes`."
    )


class NamespaceValues(Model):
    create: bool = Field(False, description="Create the namespace; for `helm template`, without `--create-namespace`.")
    labels: Labels = Field({"pod-security.kubernetes.io/enforce": "restricted"}, description="Labels of the namespace.")


class Crds(Model):
    install: bool = Field(True, description="Install and upgrade the CustomResourceDefinition with the chart.")
    keep: bool = Field(True, description="Keep it on `helm uninstall`; its deletion deletes all jobs.")


class OperatorImage(Model):
    registry: Registry = Field("", description="Registry. Empty: `global.imageRegistry`; one of the two is required.")
    repository: Repository = Field("mptraining/operator", description="Repository in the registry.")
    tag: Tag = Field("", description="Empty: the chart's appVersion.")
    digest: Digest = Field("", description="Overrides the tag.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field("IfNotPresent", description="As in a container.")


class TrainerImage(Model):
    """Default images of jobs; `settings.runtimes.default.images` overrides them, also by digests."""

    registry: Registry = Field("", description="Registry. Empty: `global.imageRegistry`; one of the two is required.")
    repository: Repository = Field("mptraining/trainer", description="Repository in the registry.")
    tag: Tag = Field("", description="Empty: the chart's appVersion. On GPUs with the suffix -gpu, on TPUs -tpu.")


class ServiceAccount(Model):
    create: bool = Field(True, description="Create the service account.")
    name: Called = Field("", description="Empty: the name of the Deployment.")
    annotations: Labels = Field({}, description="Annotations of the service account.")


class Rbac(Model):
    create: bool = Field(True, description="Create roles and bindings; only in `settings.namespaces`, if given.")
    user_roles: bool = Field(True, description="Aggregate access to jobs into the ClusterRoles view, edit and admin.")


class OperatorResources(Model):
    # Measured: 24 ms of CPU time a job, so that ten jobs start in a second on a busy node; 155 MiB
    # with 1,000 jobs and 289 MiB with 5,000.
    requests: Object = Field(
        {"cpu": "250m", "memory": "256Mi", "ephemeral-storage": "16Mi"},
        description="As in a container. The defaults are for ten starts a second and some thousand jobs.",
    )
    limits: Object = Field(
        {"memory": "512Mi", "ephemeral-storage": "128Mi"},
        description="As in a container. Without a CPU limit, because a throttled leader loses its Lease.",
    )


class PodDisruptionBudget(Model):
    enabled: bool = Field(True, description="Create a PodDisruptionBudget, if there are two or more replicas.")


class NetworkPolicy(Model):
    enabled: bool = Field(
        True, description="Allow only the pods of jobs to send reports, and only `metricsFrom` to read metrics."
    )
    metrics_from: tuple[Object, ...] = Field(
        (), description="Peers (as in a NetworkPolicy) that may read metrics. Empty: all."
    )
    egress: tuple[Object, ...] = Field(
        (),
        description="Egress rules (as in a NetworkPolicy), which must allow the API server. Empty: all egress.",
    )


class ServiceMonitor(Model):
    enabled: bool = Field(False, description="Create a ServiceMonitor; requires the Prometheus operator.")
    interval: Duration = Field("30s", description="Scrape interval.")
    labels: Labels = Field({}, description="Extra labels, for the selector of Prometheus.")


class PrometheusRule(Model):
    enabled: bool = Field(False, description="Create a PrometheusRule with alerts; requires the Prometheus operator.")
    labels: Labels = Field({}, description="Extra labels, for the selector of Prometheus.")


class Dashboard(Model):
    enabled: bool = Field(False, description="Create a ConfigMap with a Grafana dashboard.")
    labels: Labels = Field({"grafana_dashboard": "1"}, description="Labels, for the selector of Grafana's sidecar.")
    annotations: Labels = Field({}, description="Annotations, such as the folder for Grafana's sidecar.")


class MetricsValues(Model):
    annotations: bool = Field(True, description="Annotate pods with prometheus.io/scrape and port.")
    service_monitor: ServiceMonitor = Field(ServiceMonitor(), description="ServiceMonitor for the Prometheus operator.")
    prometheus_rule: PrometheusRule = Field(PrometheusRule(), description="Alerts for the Prometheus operator.")
    dashboard: Dashboard = Field(Dashboard(), description="Dashboard for Grafana.")


class ChartValues(Model):
    """Values of the Helm chart."""

    global_: Global = Field(Global(), alias="global", description="Shared by all charts of a release.")
    fullname_override: FullName = Field("", description="Name of the objects. Empty: `<release>-operator`.")
    common_labels: OtherLabels = Field({}, description="Extra labels of all objects.")
    namespace: NamespaceValues = Field(NamespaceValues(), description="The operator's namespace.")
    crds: Crds = Field(Crds(), description="The CustomResourceDefinitions.")
    replicas: Annotated[int, Field(ge=1, le=10)] = Field(
        2, description="Number of replicas; one leads, all receive progress reports."
    )
    image: OperatorImage = Field(OperatorImage(), description="The operator's image.")
    trainer: TrainerImage = Field(TrainerImage(), description="Default images of jobs.")
    service_account: ServiceAccount = Field(ServiceAccount(), description="The operator's service account.")
    rbac: Rbac = Field(Rbac(), description="Roles of the operator and of users.")
    resources: OperatorResources = Field(OperatorResources(), description="Requests and limits of each replica.")
    priority_class_name: Called = Field(
        "",
        description="An existing PriorityClass of the replicas, above those of jobs; such as system-cluster-critical, "
        "where the provider allows it outside kube-system.",
    )
    pod_security_context: Object = Field(
        {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        description="As in a pod. The images' user is 1000; platforms such as OpenShift assign another.",
    )
    node_selector: Labels = Field({}, description="As in a pod.")
    tolerations: tuple[Object, ...] = Field((), description="As in a pod.")
    affinity: Object = Field({}, description="As in a pod.")
    topology_spread_constraints: tuple[Object, ...] = Field(
        (),
        description="As in a pod. Empty: on different nodes where there are several, in zones if possible.",
    )
    pod_labels: Labels = Field({}, description="Extra labels of the replicas.")
    pod_annotations: Labels = Field({}, description="Extra annotations of the replicas.")
    extra_env: tuple[Object, ...] = Field(
        (), description="Extra environment variables of the replicas, as in a container."
    )
    pod_disruption_budget: PodDisruptionBudget = Field(
        PodDisruptionBudget(), description="Keeps one replica available while nodes are drained."
    )
    network_policy: NetworkPolicy = Field(NetworkPolicy(), description="NetworkPolicy of the replicas.")
    metrics: MetricsValues = Field(MetricsValues(), description="Monitoring of the operator.")
    settings: Object = Field(
        {},
        description="The operator's own settings, which it checks when it starts: a mistake fails the rollout and "
        "leaves the old replicas. `python -m mptraining_operator settings` prints all with their defaults.",
    )


_HEAD = "# Generated by `make manifests`: edit hack/helm_chart.py, not this file.\n"


def values_yaml() -> str:
    """Return values.yaml; the comment of a value begins with `--` for helm-docs, that of a section does not."""
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
            yield f"{indent}# -- {field.description}"
            # JSON is valid YAML with all necessary quotes.
            yield f"{indent}{field.alias}: {json.dumps(value)}"


def values_schema() -> str:
    """Return values.schema.json.

    Sections are required, so that `--set crds=null`, which removes the section, is refused by name.
    """
    schema = ChartValues.model_json_schema(by_alias=True)
    pending = [schema]
    while pending:
        section = pending.pop()
        sections = {name: field["$ref"] for name, field in section.get("properties", {}).items() if "$ref" in field}
        if sections:
            section["required"] = list(sections)
            pending += [schema["$defs"][reference.rpartition("/")[2]] for reference in sections.values()]
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_texts(schema)}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _without_texts(node: Any) -> Any:
    """Return the schema without titles, descriptions and defaults, which values.yaml has."""
    if isinstance(node, list):
        return [_without_texts(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _without_texts(item) for name, item in value.items()}
        if key in ("properties", "$defs")
        else _without_texts(value)
        for key, value in node.items()
        if key not in ("title", "description", "default")
    }


def files() -> dict[str, str]:
    """Return the text of each generated file by its path in the chart."""
    return {"values.yaml": values_yaml(), "values.schema.json": values_schema()}


if __name__ == "__main__":
    for path, text in files().items():
        Path("charts/mptraining", path).write_text(text, encoding="utf-8")
