"""Rights as the API server sees them, and custom resource definitions."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.testbed.kubernetes.rest import APPLY, Object, Refused, Rest


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


def apply_crd(rest: Rest, definition: Object) -> None:
    """Apply the definition and wait until objects of its first version can be listed."""
    name = definition["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    rest.patch(path, definition, kind=APPLY, query={"fieldManager": "testbed", "force": "true"})

    def established() -> bool:
        conditions = rest.get(path).get("status", {}).get("conditions") or ()
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

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


def created(rest: Rest, path: str, body: Object) -> None:
    """Create the object, or keep the existing one."""
    try:
        rest.post(path, body)
    except Refused as refused:
        if refused.reason != "AlreadyExists":
            raise
