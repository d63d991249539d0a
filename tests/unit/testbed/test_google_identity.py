"""The Google emulator refuses what Google refuses; otherwise an accepted request would prove nothing."""

from __future__ import annotations

import base64
import json

import pytest

from tests.testbed.google.identity import ANNOTATION, JWT_BEARER, Holder, KubernetesAccount, Realm

NOW = 1_800_000_000.0
READ, WRITE = ("https://www.googleapis.com/auth/devstorage.read_only", "https://www.googleapis.com/auth/cloud-platform")
REALM = Realm(
    secret="one",
    grants={"data": {"reader@p": "roles/storage.objectViewer", "user@p": "roles/storage.objectUser"}},
    users={"user@p": ("serviceAccount:our-project.svc.id.goog[team/trainer]",)},
)
OBJECT, LISTING = "/storage/v1/b/data/o/a%2Fb?alt=media", "/storage/v1/b/data/o?prefix=a"
UPLOAD, XML = "/upload/storage/v1/b/data/o?uploadType=media&name=x", "/data/a/b"


def token(principal: str, scope: str = WRITE, *, until: float = NOW + 60, realm: Realm = REALM) -> str:
    return realm.seal(Holder(principal=principal, scopes=(scope,), until=until))


@pytest.mark.parametrize(
    ("method", "target", "bearer", "status", "said"),
    [
        ("GET", OBJECT, token("reader@p", READ), None, ""),
        ("GET", XML, token("reader@p", READ), None, ""),
        ("GET", LISTING, token("reader@p", READ), None, ""),
        ("POST", UPLOAD, token("user@p"), None, ""),
        ("DELETE", OBJECT, token("user@p"), None, ""),
        ("GET", OBJECT, "", 401, "Anonymous caller does not have storage.objects.get access"),
        ("GET", OBJECT, "emulator", 401, "Invalid Credentials"),
        ("GET", OBJECT, token("reader@p", until=NOW - 1), 401, "Invalid Credentials"),
        ("GET", OBJECT, token("reader@p", realm=Realm(secret="other")), 401, "Invalid Credentials"),
        ("GET", XML, token("other@p"), 403, "other@p does not have storage.objects.get access"),
        (
            "GET",
            OBJECT.replace("data", "other"),
            token("user@p"),
            403,
            "user@p does not have storage.objects.get access",
        ),
        ("POST", UPLOAD, token("reader@p"), 403, "reader@p does not have storage.objects.create access"),
        ("DELETE", OBJECT, token("reader@p"), 403, "reader@p does not have storage.objects.delete access"),
        ("POST", UPLOAD, token("user@p", READ), 403, "insufficient authentication scopes"),
    ],
)
def test_a_bucket_asks_who_it_is(method: str, target: str, bearer: str, status: int | None, said: str) -> None:
    refused = REALM.refusal(method, target, bearer, NOW)
    assert (refused.status if refused else None) == status
    assert said in (refused.body if refused else "")


def test_a_token_cannot_be_made_another_s() -> None:
    _, body, seal = token("reader@p").split(".")
    holder = json.loads(base64.urlsafe_b64decode(body + "=="[: -len(body) % 4]))
    forged = base64.urlsafe_b64encode(json.dumps(holder | {"principal": "user@p"}).encode()).decode().rstrip("=")
    assert REALM.holder(f"ya29.{forged}.{seal}", NOW) is None
    assert REALM.holder(f"ya29.{body}.{seal}", NOW) is not None


def test_an_assertion_without_a_signature_is_none() -> None:
    for assertion in ("", "a.b", "e30.e30.e30"):
        answer = REALM.token({"grant_type": JWT_BEARER, "assertion": assertion}, NOW)
        assert (answer.status, json.loads(answer.body)["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize(("namespace", "status"), [("team", 200), ("other", 403)])
def test_the_metadata_server_asks_iam_about_the_annotation(namespace: str, status: int) -> None:
    asking = KubernetesAccount(namespace=namespace, name="trainer", annotations={ANNOTATION: "user@p"})
    path = "computeMetadata/v1/instance/service-accounts/default/token"
    answer = REALM.metadata(path, {"scopes": WRITE}, asking, NOW)
    assert answer.status == status
    if status == 200:
        holder = REALM.holder(json.loads(answer.body)["access_token"], NOW)
        assert holder is not None
        assert (holder.principal, holder.scopes) == ("user@p", (WRITE,))
