"""Namespaces, service accounts with their rights and tokens, and custom resource definitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.testbed.kubernetes.rest import APPLY, Object, Refused, Rest

PolicyRule = Mapping[str, Sequence[str]]
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def namespace(rest: Rest, name: str, *, labels: Mapping[str, str]) -> str:
    """Create the namespace and its default service account, without which no pod is admitted."""
    rest.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels)}})
    _created(rest, f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    return name


def service_account(rest: Rest, namespace: str, name: str, *, rules: Sequence[PolicyRule], cluster_wide: bool) -> str:
    """Create the account, a role with `rules` and the binding; return a token. A ClusterRole is NAMESPACE-NAME."""
    _created(rest, f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    scope, kind = (_RBAC, "ClusterRole") if cluster_wide else (f"{_RBAC}/namespaces/{namespace}", "Role")
    role = f"{namespace}-{name}" if cluster_wide else name
    _created(
        rest,
        f"{scope}/{kind.lower()}s",
        {"metadata": {"name": role}, "rules": [{key: list(value) for key, value in rule.items()} for rule in rules]},
    )
    _created(
        rest,
        f"{scope}/{kind.lower()}bindings",
        {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
        },
    )
    _wait_for_rights(rest, f"system:serviceaccount:{namespace}:{name}", None if cluster_wide else namespace, rules)
    return token(rest, namespace, name)


def _wait_for_rights(rest: Rest, user: str, namespace: str | None, rules: Sequence[PolicyRule]) -> None:
    """Wait for the API server's caches of roles and bindings, which are updated a moment after they were created."""
    for rule in rules:
        name = next(iter(rule.get("resourceNames", ())), None)
        resource, _, subresource = rule["resources"][-1].partition("/")
        asked = may(user, rule["verbs"][-1], rule["apiGroups"][-1], resource, namespace, name, subresource)
        wait_until_allowed(rest, asked)


def wait_until_allowed(rest: Rest, asked: Object) -> None:
    """Retry a SubjectAccessReview until it allows the request. Raises TimeoutError."""
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_until(lambda: bool(rest.post(path, asked)["status"].get("allowed")), f"allowed: {asked['spec']}")


def may(
    user: str,
    verb: str,
    group: str,
    resource: str,
    namespace: str | None,
    name: str | None = None,
    subresource: str = "",
) -> Object:
    """Return the result of a SubjectAccessReview."""
    what = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    where = {"namespace": namespace} if namespace else {}
    which = {"name": name} if name else {}
    return {"spec": {"user": user, "resourceAttributes": {**what, **where, **which}}}


def token(
    rest: Rest,
    namespace: str,
    service_account: str,
    *,
    audiences: Sequence[str] = (),
    seconds: int = 3600,
    pod: tuple[str, str] | None = None,
) -> str:
    """Request a token by TokenRequest, for the API server itself without `audiences`; `pod` is a name and a uid."""
    spec: dict[str, Any] = {"audiences": list(audiences), "expirationSeconds": seconds}
    if pod:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod[0], "uid": pod[1]}
    answer = rest.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token", {"spec": spec})
    return str(answer["status"]["token"])


def apply_crd(rest: Rest, definition: Object) -> None:
    """Apply the definition and wait until objects of its first version can be listed."""
    name = definition["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    rest.patch(path, definition, kind=APPLY, query={"fieldManager": "testbed", "force": "true"})

    def established() -> bool:
        conditions = rest.get(path).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def served() -> bool:
        spec = definition["spec"]
        rest.get(f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}", {"limit": "1"})
        return True

    wait_until(established, f"{name} established")
    wait_until(served, f"{name} served")


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 120, every: float = 0.02) -> None:
    """Retry until `condition` holds; a refusal counts as no. Raises TimeoutError naming `what` and the last refusal."""
    deadline = time.monotonic() + seconds
    refused: Refused | None = None
    while True:
        try:
            if condition():
                return
        except Refused as answer:
            refused = answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {seconds:g} s: {what}{f' ({refused})' if refused else ''}")
        time.sleep(every)


def _created(rest: Rest, path: str, body: Object) -> None:
    """Create the object, or keep the existing one."""
    try:
        rest.post(path, body)
    except Refused as refused:
        if refused.reason != "AlreadyExists":
            raise
