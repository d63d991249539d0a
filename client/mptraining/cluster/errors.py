"""Errors of the Kubernetes API as exceptions with the next step for the user.

ClusterProblem              the API server rejected the request; `status` is the HTTP code
├── NoCluster               no cluster is configured, or the configuration is invalid
├── NotLoggedIn             the credentials are not accepted
├── NotAllowed              the credentials are accepted, but the role is missing
├── NotInstalled            the cluster does not know MPTrainingJob
├── NotFound                there is no job, or no namespace, of that name
├── NoLogs                  the job has no pod with a log of that attempt or worker
├── AlreadyExists           a job of that name exists
└── Unreachable             the API server does not answer; possibly transient
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.problems import Problem

INSTALL = "kubectl apply -f manifests/install.yaml"
# `mptj` replaces it by its flag (`mptraining.cli.main`).
_NOUNS = {"mptrainingjobs": "job", "mptrainingsweeps": "sweep"}
_OTHER_NAMESPACE = "where=mptraining.Where(namespace=…)"
_USER = re.compile(r'User "([^"]+)"')
_INVALID = re.compile(r'^MPTraining(?:Job|Sweep)\.\S+ "[^"]*" is invalid: ')


class ClusterProblem(Problem):
    """An error that the user can fix, like InvalidSpec: `mptj` exits with 2 unless a subclass has another code."""

    reason = "InvalidSpec"
    exit_code: ClassVar[int] = 2
    status: int = 0


class NoCluster(ClusterProblem):
    pass


class NotLoggedIn(ClusterProblem):
    pass


class NotAllowed(ClusterProblem):
    pass


class NotInstalled(ClusterProblem):
    pass


class NotFound(ClusterProblem):
    pass


class NoLogs(ClusterProblem):
    pass


class AlreadyExists(ClusterProblem):
    pass


class Unreachable(ClusterProblem):
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
    """Convert ApiProblem to ClusterProblem."""
    try:
        yield
    except ApiProblem as problem:
        raise cluster_problem(request, problem) from None


def cluster_problem(request: Request, problem: ApiProblem) -> ClusterProblem:
    """Return the exception for an error response, with the next step."""
    converted = _converted(request, problem.status, problem.reason, problem.message, problem.kind)
    converted.status = problem.status
    return converted


def _converted(request: Request, status: int, reason: str, message: str, kind: str) -> ClusterProblem:
    message = " ".join(message.split())
    resource = request.resource.partition("/")[0]
    noun = _NOUNS.get(resource, "")
    if status == 0:
        return Unreachable(
            request.cluster,
            f"the API server does not answer: {message}",
            next_step="Is the cluster running, and this machine in a network that reaches it (VPN, proxy)? "
            "Try: kubectl cluster-info",
        )
    if status == 401 or (status == 403 and '"system:anonymous"' in message):
        return NotLoggedIn(
            request.cluster,
            "the API server does not accept these credentials",
            next_step="Log in again, as you did for this cluster's kubeconfig; in Colab: "
            "google.colab.auth.authenticate_user()",
        )
    if status == 404:
        return _not_found(request, kind, noun)
    if status == 403 and not (noun and "cannot" not in message):
        return _forbidden(request, message)
    if noun and status in (400, 403, 409, 422):
        return _refused(request, reason, message, noun)
    return ClusterProblem(request.cluster, f"{request.verb} {request.resource}: HTTP {status} {reason}: {message}")


def _forbidden(request: Request, message: str) -> ClusterProblem:
    """Return the problem for HTTP 403: missing RBAC permissions, or a rule of the namespace such as a quota."""
    if "cannot" in message:
        return NotAllowed(request.cluster, _refusal(request, message), next_step=_grant(request, message))
    return ClusterProblem(
        request.cluster,
        f"refused to {request.verb} {request.resource} in namespace {request.namespace!r}: {message}",
        next_step=f"Ask the administrator of the namespace, or name another: {_OTHER_NAMESPACE}.",
    )


def _refused(request: Request, reason: str, message: str, noun: str) -> ClusterProblem:
    if reason == "AlreadyExists":
        return AlreadyExists(
            request.name,
            f"a {noun} of this name exists in namespace {request.namespace!r}",
            next_step=f"Look at it with `mptj status {request.name}`; delete it with `mptj cancel {request.name}`, "
            "or choose another name.",
        )
    return ClusterProblem(request.name, _INVALID.sub("", message), next_step=f"Fix the {noun} and submit it again.")


def _not_found(request: Request, kind: str, noun: str) -> ClusterProblem:
    """Return the problem for HTTP 404: the kind, the namespace or the object is missing, by the response's details."""
    if noun and not kind:
        older = ", or an older version without sweeps is" if noun == "sweep" else ""
        return NotInstalled(
            request.cluster,
            f"this cluster does not know MPTraining{noun.title()}: mptraining is not installed there{older}",
            next_step=f"An administrator installs it once, from a copy of the project: {INSTALL}",
        )
    if kind == "namespaces":
        return NotFound(
            request.cluster,
            f"there is no namespace {request.namespace!r}",
            next_step=f"Name another, {_OTHER_NAMESPACE}, or make it: kubectl create namespace {request.namespace}",
        )
    return NotFound(
        request.name,
        f"no {noun or request.resource} of this name in namespace {request.namespace!r} of {request.cluster}",
        next_step="`mptj list` shows those that exist; another namespace: where=mptraining.Where(namespace=…)."
        if noun
        else "",
    )


def _refusal(request: Request, message: str) -> str:
    found = _USER.search(message)
    who = found[1] if found else "this account"
    where = f"in namespace {request.namespace!r}" if request.namespace else "in the cluster"
    return f"{who} may not {request.verb} {request.resource} {where}"


def _grant(request: Request, message: str) -> str:
    """Return the command that grants the role.

    The ClusterRole `edit` contains mptraining-edit by aggregation, and `view` contains mptraining-view.
    """
    found = _USER.search(message)
    user = found[1] if found else "USER"
    if request.namespace is None:
        role = f"one with the verb {request.verb} on {request.resource}"
        return f"An administrator binds a ClusterRole, {role}, to {user!r}."
    role = "view" if request.verb in ("get", "list", "watch") and request.resource != "pods/exec" else "edit"
    subject = f"--user={user}"
    if user.startswith("system:serviceaccount:"):
        subject = f"--serviceaccount={user.removeprefix('system:serviceaccount:')}"
    name = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[-40:].strip("-")
    command = f"kubectl create rolebinding {name}-{role} --clusterrole={role} {subject} --namespace={request.namespace}"
    return f"An administrator grants the role {role!r}, which holds mptraining-{role}: {command}"
