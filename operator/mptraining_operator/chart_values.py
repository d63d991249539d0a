"""The values of the Helm chart as a model: what stands around the operator, and under `settings` its own settings.

`values.yaml` and `values.schema.json` are made from it (`chart`), so that no value is without a type and a meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

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
