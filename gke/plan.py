"""The steps that create everything and those that remove it, as commands. Pure.

Each step names the command that looks whether its object exists and whose it is, so that a run that was stopped
continues, and so that nothing is deleted that another created.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gke.pools import Pool
from gke.settings import Settings

Command = tuple[str, ...]
APIS = ("container.googleapis.com", "storage.googleapis.com")
RELEASE, SYSTEM = "mptraining", "mptraining-system"
# The node pools start empty and are scaled by the cluster's autoscaler: a machine costs only while a job waits or runs.
_MOST_NODES = "1"


@dataclass(frozen=True)
class Step:
    """`look` prints the object as JSON, or fails if it is missing; without it `create` may be repeated.

    `labels` is the path of the labels in that JSON that must hold Settings.label; empty where the object is inside
    another one that has it. `after` are commands that complete the object, where `create` cannot set its label.
    """

    title: str
    create: Command
    look: Command = ()
    labels: tuple[str, ...] = ()
    delete: Command = ()
    after: tuple[Command, ...] = ()


def setup(settings: Settings, pools: Sequence[Pool], project_number: str, chart: str) -> tuple[Step, ...]:
    """Return the steps in their order: APIs, cluster, pools, bucket, access of the pods, chart."""
    cluster = _cluster(settings)
    return (
        Step("APIs", ("gcloud", "services", "enable", *APIS, *_project(settings))),
        cluster,
        *(_pool(settings, pool) for pool in pools),
        _bucket(settings),
        Step("access of the jobs' pods to the bucket", _access(settings, project_number)),
        Step("credentials for kubectl", _credentials(settings)),
        Step(f"namespace {settings.namespace}", *_kubectl(settings, "namespace", settings.namespace, ())),
        Step(
            f"service account {settings.account}",
            *_kubectl(settings, "serviceaccount", settings.account, ("--namespace", settings.namespace)),
        ),
        Step("mptraining", _chart(settings, chart)),
    )


def teardown(settings: Settings, zones: Sequence[str]) -> tuple[Step, ...]:
    """Return what `down` removes: the clusters, which take pools, chart and jobs with them, and the bucket."""
    return (*(_cluster(replace(settings, zone=zone)) for zone in zones), _bucket(settings))


def clusters(settings: Settings) -> Command:
    """Return the command that prints the project's clusters in all zones."""
    return ("gcloud", "container", "clusters", "list", "--format=json", *_project(settings))


def project_number(settings: Settings) -> Command:
    """Return the command that prints the number by which IAM names the project's workload identity pool."""
    return ("gcloud", "projects", "describe", settings.project, "--format=value(projectNumber)")


def context(settings: Settings) -> str:
    """Return the context that `get-credentials` writes into the kubeconfig."""
    return f"gke_{settings.project}_{settings.zone}_{settings.name}"


def _cluster(settings: Settings) -> Step:
    base = ("gcloud", "container", "clusters")
    place = (settings.name, f"--location={settings.zone}", *_project(settings))
    create = (
        *base,
        "create",
        *place,
        "--release-channel=regular",
        "--num-nodes=1",
        "--machine-type=e2-standard-4",
        "--disk-size=50GB",
        f"--workload-pool={settings.project}.svc.id.goog",
        "--workload-metadata=GKE_METADATA",
        f"--labels={settings.label}",
        "--quiet",
    )
    return Step(
        f"cluster {settings.name} in {settings.zone}",
        create,
        look=(*base, "describe", *place, "--format=json"),
        labels=("resourceLabels",),
        delete=(*base, "delete", *place, "--quiet"),
    )


def _pool(settings: Settings, pool: Pool) -> Step:
    base = ("gcloud", "container", "node-pools")
    place = (pool.name, f"--cluster={settings.name}", f"--location={settings.zone}", *_project(settings))
    create = [*base, "create", *place, f"--machine-type={pool.machine}"]
    if pool.accelerator:
        create.append(f"--accelerator={pool.accelerator}")
    if pool.spot:
        create.append("--spot")
    create += [
        "--num-nodes=0",
        "--enable-autoscaling",
        "--min-nodes=0",
        f"--max-nodes={_MOST_NODES}",
        "--disk-size=100GB",
        "--workload-metadata=GKE_METADATA",
        f"--labels={settings.label}",
        "--quiet",
    ]
    return Step(
        f"node pool {pool.name}",
        tuple(create),
        look=(*base, "describe", *place, "--format=json"),
        labels=("config", "resourceLabels"),
    )


def _bucket(settings: Settings) -> Step:
    uri = f"gs://{settings.bucket}"
    base = ("gcloud", "storage", "buckets")
    create = (
        *base,
        "create",
        uri,
        f"--location={settings.region}",
        "--uniform-bucket-level-access",
        "--public-access-prevention",
        *_project(settings),
    )
    return Step(
        f"bucket {uri}",
        create,
        look=(*base, "describe", uri, "--raw", "--format=json", *_project(settings)),
        labels=("labels",),
        delete=("gcloud", "storage", "rm", "--recursive", uri, "--quiet", *_project(settings)),
        after=(bucket_label(settings),),
    )


def bucket_label(settings: Settings) -> Command:
    """Return the command that marks the bucket; `buckets create` has no flag for labels."""
    uri = f"gs://{settings.bucket}"
    return ("gcloud", "storage", "buckets", "update", uri, f"--update-labels={settings.label}", *_project(settings))


def _access(settings: Settings, number: str) -> Command:
    # The pods' Kubernetes account itself is the member (workload identity federation for GKE): no account of Google's
    # is created, and the binding is deleted with the bucket.
    pool = f"principal://iam.googleapis.com/projects/{number}/locations/global/workloadIdentityPools"
    member = f"{pool}/{settings.project}.svc.id.goog/subject/ns/{settings.namespace}/sa/{settings.account}"
    return (
        *("gcloud", "storage", "buckets", "add-iam-policy-binding", f"gs://{settings.bucket}"),
        *(f"--member={member}", "--role=roles/storage.objectUser", *_project(settings)),
    )


def _credentials(settings: Settings) -> Command:
    place = (settings.name, f"--location={settings.zone}", *_project(settings))
    return ("gcloud", "container", "clusters", "get-credentials", *place)


def _kubectl(settings: Settings, kind: str, name: str, place: Sequence[str]) -> tuple[Command, Command]:
    """Return the commands that create and look for an object of Kubernetes."""
    base = ("kubectl", f"--context={context(settings)}")
    return (*base, "create", kind, name, *place), (*base, "get", kind, name, *place, "--output=json")


def _chart(settings: Settings, chart: str) -> Command:
    values = [f"--set=global.imageRegistry={settings.images}"] if settings.images else []
    if settings.tag:
        values += [f"--set={name}.tag={settings.tag}" for name in ("image", "trainer")]
    place = (f"--kube-context={context(settings)}", f"--namespace={SYSTEM}", "--create-namespace")
    return ("helm", "upgrade", "--install", RELEASE, chart, *place, *values, "--wait", "--timeout=10m")


def _project(settings: Settings) -> Command:
    return (f"--project={settings.project}",)
