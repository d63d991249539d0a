"""Errors of the Kubernetes API as exceptions with the next step for the user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.problems import ArgumentPlace, Place, Problem

INSTALL = (
    "helm install mptraining charts/mptraining --namespace mptraining-system --create-namespace "
    "--set global.imageRegistry=HOST/PATH"
)
NOUNS = {"mptrainingjobs": "job", "mptrainingsweeps": "sweep"}
# Arguments that choose the cluster.
CONTEXT = ArgumentPlace("cluster=mptraining.Cluster(context=…)", "--context")
NAMESPACE = ArgumentPlace("cluster=mptraining.Cluster(namespace=…)", "--namespace")
GKE = ArgumentPlace("cluster=mptraining.Cluster(gke=…)", "--gke PROJECT/LOCATION/CLUSTER")
# Subresources that change a pod although their requests are GET: the ClusterRole `view` does not have them.
_POWERFUL = ("pods/exec", "pods/portforward")
_USER = re.compile(r'User "([^"]+)"')
_INVALID = re.compile(r'^MPTraining(?:Job|Sweep)\.\S+ "[^"]*" is invalid: ')


class ClusterProblem(Problem):
    """An error that the user can fix, like InvalidSpec: `mptj` exits with 2 unless a subclass has another code.

    `status` is the HTTP code of the API server's response.
    """

    reason = "InvalidSpec"
    exit_code: ClassVar[int] = 2
    status: int = 0


class NoCluster(ClusterProblem):
    """No cluster is configured, or the configuration is invalid."""


class NotLoggedIn(ClusterProblem):
    """The credentials are not accepted."""


class NotAllowed(ClusterProblem):
    """The credentials are accepted, but the role is missing."""


class NotInstalled(ClusterProblem):
    """The cluster does not know MPTrainingJob."""


class NotFound(ClusterProblem):
    """There is no job, or no namespace, of that name."""


class NoLogs(ClusterProblem):
    """The job has no pod with a log of that attempt or worker."""


class AlreadyExists(ClusterProblem):
    """A job of that name exists."""


class Unreachable(ClusterProblem):
    """The API server does not answer; possibly transient."""

    # EX_TEMPFAIL of sysexits.h, as for storage that does not answer: a retry may succeed.
    exit_code = 75


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the API server: RBAC `verb`, `resource` as in `pods/log`, and `cluster` as shown to the user."""

    verb: str
    resource: str
    group: str
    namespace: str | None
    name: str
    cluster: str


@contextmanager
def cluster_problems(request: Request) -> Iterator[None]:
    try:
        yield
    except ApiProblem as problem:
        raise cluster_problem(request, problem) from None


def cluster_problem(request: Request, problem: ApiProblem) -> ClusterProblem:
    """Return the exception for an error response, with the next step."""
    message, status = " ".join(problem.message.split()), problem.status
    noun = NOUNS.get(request.resource.partition("/")[0], "")
    kind: type[ClusterProblem] = ClusterProblem
    where, there = request.cluster, f"in namespace {request.namespace!r}"
    step: str | Sequence[str | Place] = ""
    if status == 0:
        kind, explanation = Unreachable, f"the API server does not answer: {message}"
        step = (
            "Is the cluster running, and this machine in a network that reaches it (VPN, proxy)? "
            "Try: kubectl cluster-info"
        )
    elif status == 401 or (status == 403 and '"system:anonymous"' in message):
        kind, explanation = NotLoggedIn, "the API server does not accept these credentials"
        step = "Log in again, as you did for this cluster's kubeconfig; in Colab: google.colab.auth.authenticate_user()"
    elif status == 404 and noun and not problem.kind:
        older = ", or an older version without sweeps is" if noun == "sweep" else ""
        kind = NotInstalled
        explanation = f"this cluster does not know MPTraining{noun.title()}: mptraining is not installed there{older}"
        step = f"An administrator installs it once, from a copy of the project: {INSTALL}"
    elif status == 404 and problem.kind == "namespaces":
        kind, explanation = NotFound, f"there is no namespace {request.namespace!r}"
        step = ("Name another, ", NAMESPACE, f", or make it: kubectl create namespace {request.namespace}")
    elif status == 404:
        kind, where = NotFound, request.name
        explanation = f"no {noun or request.resource} of this name {there} of {request.cluster}"
        step = ("`mptj list` shows those that exist; another namespace: ", NAMESPACE, ".") if noun else ""
    elif status == 403 and "cannot" in message:
        kind = NotAllowed
        explanation, step = _missing_role(request, message)
    elif status == 403 and not noun:
        explanation = f"refused to {request.verb} {request.resource} {there}: {message}"
        step = ("Ask the administrator of the namespace, or name another: ", NAMESPACE, ".")
    elif noun and status in (400, 403, 409, 422) and problem.reason == "AlreadyExists":
        kind, where, explanation = AlreadyExists, request.name, f"a {noun} of this name exists {there}"
        step = f"Look at it with `mptj status {where}`; delete it with `mptj cancel {where}`, or choose another name."
    elif noun and status in (400, 403, 409, 422):
        where, explanation, step = request.name, _INVALID.sub("", message), f"Fix the {noun} and submit it again."
    else:
        explanation = f"{request.verb} {request.resource}: HTTP {status} {problem.reason}: {message}"
    converted = kind(where, explanation, next_step=step)
    converted.status = status
    return converted


def _missing_role(request: Request, message: str) -> tuple[str, str]:
    """Return what the user may not do, and the command that grants the role.

    The ClusterRole `edit` contains mptraining-edit by aggregation, and `view` contains mptraining-view.
    """
    match = _USER.search(message)
    user = match[1] if match else "USER"
    outside = "in all namespaces" if request.resource in NOUNS else "in the cluster"
    where = f"in namespace {request.namespace!r}" if request.namespace else outside
    explanation = f"{match[1] if match else 'this account'} may not {request.verb} {request.resource} {where}"
    if request.namespace is None and request.resource not in NOUNS:
        role = f"one with the verb {request.verb} on {request.resource}"
        return explanation, f"An administrator binds a ClusterRole, {role}, to {user!r}."
    role = "view" if request.verb in ("get", "list", "watch") and request.resource not in _POWERFUL else "edit"
    subject = f"--user={user}"
    if user.startswith("system:serviceaccount:"):
        subject = f"--serviceaccount={user.removeprefix('system:serviceaccount:')}"
    name = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[-40:].strip("-")
    binding, scope = "rolebinding", f" --namespace={request.namespace}"
    if request.namespace is None:
        binding, scope = "clusterrolebinding", ""
    command = f"kubectl create {binding} {name}-{role} --clusterrole={role} {subject}{scope}"
    return explanation, f"An administrator grants the role {role!r}, which holds mptraining-{role}: {command}"
