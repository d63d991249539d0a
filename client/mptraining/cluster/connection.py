"""Connection to a Kubernetes cluster by kubeconfig, by GKE name, or from within a pod.

Cluster()                                       KUBECONFIG, ~/.kube/config, or the pod's own cluster
Cluster(context="team", namespace="vision")     one context of the kubeconfig
Cluster(gke="my-project/europe-west4/training") GKE by Google's credentials, without gcloud
Cluster(in_cluster=True)                        from a pod, by its service account

The `kubernetes` package is imported only when a connection is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import CONTEXT, GKE, NoCluster
from mptraining_api.kubernetes_api import Raw
from mptraining_api.problems import InvalidSpec

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CHOICES = ("Give a kubeconfig (KUBECONFIG, ", CONTEXT, "), or the name of a cluster on GKE: ", GKE, ".")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and a namespace; defaults come from KUBECONFIG, ~/.kube/config, or the pod's service account.

    `kubeconfig` is a file that replaces KUBECONFIG and ~/.kube/config. `gke` is "PROJECT/LOCATION/CLUSTER", and
    excludes a kubeconfig.
    """

    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None
    gke: str | None = None
    in_cluster: bool = False

    def __post_init__(self) -> None:
        if self.gke is None:
            return
        if [bool(part) for part in self.gke.split("/")] != [True] * 3:
            raise NoCluster(
                GKE,
                f"{self.gke!r}",
                expected="PROJECT/LOCATION/CLUSTER",
                next_step="`gcloud container clusters list` or the console's Kubernetes page names them.",
            )
        if self.context or self.kubeconfig or self.in_cluster:
            raise NoCluster(GKE, "given together with a kubeconfig", expected="one way to name the cluster")

    def flags(self) -> list[str]:
        """Return the flags of `mptj` that select the same cluster and namespace."""
        named = {
            "--context": self.context,
            "--namespace": self.namespace,
            "--kubeconfig": self.kubeconfig,
            "--gke": self.gke,
        }
        return [part for name, value in named.items() if value for part in (name, value)]


# The default cluster.
HERE = Cluster()


def connect(cluster: Cluster) -> ApiServer:
    """Return the API server of `cluster`, without sending it a request.

    Raises NoCluster if there is no such cluster, or if the `kubernetes` package is not installed.
    """
    if not isinstance(cluster, Cluster):
        raise NoCluster(
            "cluster", f"{cluster!r}", expected="an mptraining.Cluster", next_step='Such as Cluster(context="NAME").'
        )
    try:
        from kubernetes import client, config
    except ImportError:
        raise NoCluster(
            "", "the package `kubernetes` is not installed here", next_step="pip install 'kubernetes>=34,<37'"
        ) from None
    configuration, in_pod = client.Configuration(), bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    # Retries are done, and reported to the user, by `mptraining.cluster.follow`.
    configuration.retries = False
    if cluster.gke is not None:
        from mptraining.cluster import gke

        gke.configure(configuration, gke.find_cluster(*cluster.gke.split("/")))
        name, namespace = f"GKE cluster {cluster.gke.rpartition('/')[2]}", "default"
    elif cluster.in_cluster or (not cluster.context and not cluster.kubeconfig and not _kubeconfigs() and in_pod):
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise NoCluster("", f"not in a pod with a service account: {error}", next_step=_CHOICES) from None
        name, namespace = "this pod's cluster", _own_namespace()
    else:
        name, namespace = _load_kubeconfig(config, cluster, configuration)
    return ApiServer(
        client.ApiClient(configuration),
        name=name,
        namespace=cluster.namespace or namespace,
        flags=replace(cluster, namespace=None).flags(),
        default_namespace=namespace,
    )


def connect_for(body: Raw, cluster: Cluster) -> ApiServer:
    """Connect to `cluster` in the namespace of an object to create, which gets the cluster's if it has none.

    Raises InvalidSpec if the object and `cluster` name two namespaces, and NoCluster.
    """
    server = connect(cluster)
    namespace = body["metadata"].setdefault("namespace", server.namespace)
    if cluster.namespace and namespace != cluster.namespace:
        conflict = f"{namespace!r} in the document, {cluster.namespace!r} asked for"
        raise InvalidSpec("metadata.namespace", conflict, expected="one namespace")
    return server.in_namespace(namespace)


def _load_kubeconfig(config: Any, cluster: Cluster, configuration: Any) -> tuple[str, str]:
    """Fill in the configuration; return the name of the context and its namespace."""
    files = cluster.kubeconfig or os.pathsep.join(_kubeconfigs())
    if not files:
        raise NoCluster("", "no cluster named: no KUBECONFIG, no ~/.kube/config, not in a pod", next_step=_CHOICES)
    try:
        contexts, current = config.list_kube_config_contexts(files)
        chosen = cluster.context or (current or {}).get("name")
        known = [context["name"] for context in contexts]
        if cluster.context and cluster.context not in known:
            step = f"Known: {', '.join(known) or 'none'}."
            raise NoCluster(CONTEXT, f"{cluster.context!r} is not in {files}", next_step=step)
        config.load_kube_config(files, context=chosen, client_configuration=configuration)
    except (config.ConfigException, yaml.YAMLError, OSError, TypeError, ValueError, KeyError) as error:
        raise NoCluster(files, f"cannot be used: {error}", next_step=_CHOICES) from None
    chosen_context: dict[str, Any] = next((context for context in contexts if context["name"] == chosen), {})
    return str(chosen), str(chosen_context.get("context", {}).get("namespace") or "default")


def _kubeconfigs() -> list[str]:
    """Return the existing kubeconfig files that kubectl would read."""
    named = os.environ.get("KUBECONFIG")
    files = named.split(os.pathsep) if named else [str(Path.home() / ".kube" / "config")]
    return [file for file in files if file and Path(file).exists()]


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def current_context(environment: Mapping[str, str]) -> str | None:
    """Return the name of the kubeconfig's current context; None without a kubeconfig that has one. Asks no cluster."""
    files = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    for file in files or [Path.home() / ".kube" / "config"]:
        try:
            kubeconfig = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
        if isinstance(kubeconfig, dict) and kubeconfig.get("current-context"):
            return str(kubeconfig["current-context"])
    return None
