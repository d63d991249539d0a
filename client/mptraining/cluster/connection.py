"""Connection to a Kubernetes cluster by kubeconfig, by GKE name, or from within a pod.

Where()                                                  KUBECONFIG, ~/.kube/config, or the pod's own cluster
Where(context="team", namespace="vision")                one context of the kubeconfig
Where(project="p", location="europe-west4", cluster="c") GKE by Google's credentials, without gcloud
Where(in_cluster=True)                                   from a pod, by its service account

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
from mptraining.cluster.errors import NoCluster

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# `mptj` replaces `where=…` by its flags (`mptraining.cli.main`).
_CHOICES = (
    "Give a kubeconfig (KUBECONFIG, where=mptraining.Where(context=…)), or on GKE project, location and cluster "
    "(where=mptraining.Where(project=…, location=…, cluster=…))."
)


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster and a namespace; defaults come from KUBECONFIG, ~/.kube/config, or the pod's service account.

    `kubeconfig` is a file that replaces KUBECONFIG and ~/.kube/config. `project`, `location` and `cluster` must be
    given together, and exclude a kubeconfig.
    """

    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None
    project: str | None = None
    location: str | None = None
    cluster: str | None = None
    in_cluster: bool = False

    def __post_init__(self) -> None:
        gke = {"project": self.project, "location": self.location, "cluster": self.cluster}
        missing = [name for name, value in gke.items() if not value]
        if missing and len(missing) < len(gke):
            given = ", ".join(f"{name}={value!r}" for name, value in gke.items() if value)
            raise NoCluster(
                missing[0],
                f"missing beside {given}",
                expected="project, location and cluster together",
                next_step="`gcloud container clusters list` or the console's Kubernetes page names them.",
            )
        if self.cluster and (self.context or self.kubeconfig or self.in_cluster):
            raise NoCluster("cluster", "given together with a kubeconfig", expected="one way to name the cluster")

    def flags(self) -> list[str]:
        """Return the flags of `mptj` that select the same cluster and namespace."""
        named = {
            "--context": self.context,
            "--namespace": self.namespace,
            "--project": self.project,
            "--location": self.location,
            "--cluster": self.cluster,
        }
        return [part for name, value in named.items() if value for part in (name, value)]


# The default cluster.
HERE = Where()


def connect(where: Where) -> ApiServer:
    """Return the API server of `where`, without sending it a request.

    Raises NoCluster if there is no such cluster, or if the `kubernetes` package is not installed.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise NoCluster(
            "", "the package `kubernetes` is not installed here", next_step="pip install 'kubernetes>=34,<37'"
        ) from None
    configuration, in_pod = client.Configuration(), bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    # Retries are done, and reported to the user, by `mptraining.cluster.follow`.
    configuration.retries = False
    if where.cluster and where.project and where.location:
        from mptraining.cluster import gke

        gke.configure(configuration, gke.find_cluster(where.project, where.location, where.cluster))
        name, namespace = f"GKE cluster {where.cluster}", "default"
    elif where.in_cluster or (not where.context and not where.kubeconfig and not _kubeconfigs() and in_pod):
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise NoCluster("", f"not in a pod with a service account: {error}", next_step=_CHOICES) from None
        name, namespace = "this pod's cluster", _own_namespace()
    else:
        name, namespace = _load_kubeconfig(config, where, configuration)
    return ApiServer(
        client.ApiClient(configuration),
        name=name,
        namespace=where.namespace or namespace,
        flags=replace(where, namespace=None).flags(),
        kubeconfig=where.kubeconfig,
        default_namespace=namespace,
    )


def _load_kubeconfig(config: Any, where: Where, configuration: Any) -> tuple[str, str]:
    """Fill in the configuration; return the name of the context and its namespace."""
    files = where.kubeconfig or os.pathsep.join(_kubeconfigs())
    if not files:
        raise NoCluster("", "no cluster named: no KUBECONFIG, no ~/.kube/config, not in a pod", next_step=_CHOICES)
    try:
        contexts, current = config.list_kube_config_contexts(files)
        chosen = where.context or (current or {}).get("name")
        known = [each["name"] for each in contexts]
        if where.context and where.context not in known:
            step = f"Known: {', '.join(known) or 'none'}."
            raise NoCluster("context", f"{where.context!r} is not in {files}", next_step=step)
        config.load_kube_config(files, context=chosen, client_configuration=configuration)
    except (config.ConfigException, yaml.YAMLError, OSError, TypeError, ValueError, KeyError) as error:
        raise NoCluster(files, f"cannot be used: {error}", next_step=_CHOICES) from None
    found: dict[str, Any] = next((each for each in contexts if each["name"] == chosen), {})
    return str(chosen), str(found.get("context", {}).get("namespace") or "default")


def _kubeconfigs() -> list[str]:
    """Return the existing kubeconfig files that kubectl would read."""
    named = os.environ.get("KUBECONFIG")
    files = named.split(os.pathsep) if named else [str(Path.home() / ".kube" / "config")]
    return [each for each in files if each and Path(each).exists()]


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def current_context(environment: Mapping[str, str]) -> str | None:
    """Return the name of the kubeconfig's current context; None without a kubeconfig that has one. Asks no cluster."""
    files = [Path(each) for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]
    for file in files or [Path.home() / ".kube" / "config"]:
        try:
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
        if isinstance(found, dict) and found.get("current-context"):
            return str(found["current-context"])
    return None
