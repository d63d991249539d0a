"""Credentials as a platform engineer configures them, against Google's protocols: a key, an external account, the
metadata server of GKE; and the messages about one that is misconfigured.

One process makes all requests, with both clients: one reads, google-cloud-storage lists and writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth import crypt, jwt

from tests.testbed.gcs.object_server import ObjectServer
from tests.testbed.google.server import (
    Google,
    KubernetesAccount,
    Provider,
    Realm,
    external_account,
    new_key,
    service_account_key,
)

PROJECT = "our-project"
TRAINER = f"trainer@{PROJECT}.iam.gserviceaccount.com"
READER = f"reader@{PROJECT}.iam.gserviceaccount.com"
POOLS = "iam.googleapis.com/projects/123456789/locations/global/workloadIdentityPools"
AUDIENCE = f"//{POOLS}/clusters/providers/kind"
ISSUER = "https://kubernetes.default.svc.cluster.local"
FEDERATED = f"principal://{POOLS}/clusters/subject/system:serviceaccount:team-a:trainer"
STRANGER = f"principal://{POOLS}/clusters/subject/system:serviceaccount:team-b:other"
DIRECT = f"principal://{POOLS}/{PROJECT}.svc.id.goog/subject/ns/team-a/sa"

# Standard input is a JSON object of cases: the environment's credentials and the metadata server's pod of each.
ASK = """
import json, os, pathlib, sys
from mptraining_api.problems import Problem
from mptraining_storage import gcs_clients, ranges, storage

def said(ask):
    try:
        return str(ask())
    except Problem as problem:
        return f"{problem.reason}: {problem}"

answers = {}
for name, (file, pod) in json.load(sys.stdin).items():
    os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = file
    pathlib.Path(sys.argv[1]).write_text(pod)
    gcs_clients.endpoint_of.cache_clear()
    object = "gs://private/object"
    answers[name] = [
        said(lambda: bytes(ranges.fetch(object, 0, 4, version=None, traffic=ranges.Traffic())).decode()),
        said(lambda: storage.stat(object).size),
        said(lambda: storage.write("gs://private/written", b"12").size),
    ]
json.dump(answers, sys.stdout)
"""


class Cluster:
    """A Kubernetes cluster as an issuer of service account tokens."""

    def __init__(self) -> None:
        private, public = new_key()
        self.keys = {"one": public}
        self._signer = crypt.RSASigner.from_string(private, "one")

    def token(self, subject: str, *, audience: str = f"https:{AUDIENCE}") -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": subject, "aud": [audience], "iat": now, "exp": now + 3600}
        return jwt.encode(self._signer, claims).decode()


@pytest.fixture
def kubernetes() -> Cluster:
    return Cluster()


KEY, PUBLIC = service_account_key(TRAINER)
READER_KEY, READER_PUBLIC = service_account_key(READER)


@pytest.fixture
def google(object_server: ObjectServer, kubernetes: Cluster, tmp_path: Path) -> Iterator[Google]:
    object_server.create_bucket("private")
    object_server.upload("private", "object", b"data")
    user, viewer = "roles/storage.objectUser", "roles/storage.objectViewer"
    realm = Realm(
        Provider(AUDIENCE.removeprefix("//"), issuer=ISSUER, audience=f"https:{AUDIENCE}", keys=kubernetes.keys),
        keys={TRAINER: PUBLIC, READER: READER_PUBLIC},
        users={TRAINER: (FEDERATED, f"serviceAccount:{PROJECT}.svc.id.goog[team-a/trainer]")},
        grants={"private": {TRAINER: user, READER: viewer, FEDERATED: user, f"{DIRECT}/direct": user}},
    )
    with Google(object_server.address, realm, tmp_path / "google") as started:
        yield started


WORKS = ["data", "4", "2"]
DENIED = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist)"
NAMED = "the file that GOOGLE_APPLICATION_CREDENTIALS names is of no use"


def everywhere(problem: str) -> list[str]:
    return [f"InvalidData: gs://private/{key}: {problem}" for key in ("object", "object", "written")]


def no_role(principal: str) -> list[str]:
    roles = ("objectViewer", "objectViewer", "objectUser")
    return [
        f"InvalidData: gs://private/{key}: {principal} has no permission (HTTP 403). "
        f"Grant roles/storage.{role} on gs://private to {principal}"
        for key, role in zip(("object", "object", "written"), roles, strict=True)
    ]


def test_each_way_of_credentials_works_and_reports_what_is_missing(
    google: Google, kubernetes: Cluster, tmp_path: Path
) -> None:
    def file(name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def external(name: str, token: str | None, account: str | None) -> str:
        token_file = file(f"{name}.token", token) if token else "/nowhere/token"
        return file(f"{name}.json", external_account(AUDIENCE, token_file, account))

    def pod(namespace: str, name: str, account: str = "") -> str:
        return KubernetesAccount(namespace, name, account).to_json()

    ours, theirs = "system:serviceaccount:team-a:trainer", "system:serviceaccount:team-b:other"
    unknown = service_account_key("gone@our-project.iam.gserviceaccount.com")[0]
    cases: dict[str, tuple[str, str, list[str]]] = {
        "key": (file("key.json", KEY), "", WORKS),
        "key of one who may only read": (file("reader.json", READER_KEY), "", [*WORKS[:2], no_role(READER)[2]]),
        "key that was deleted": (
            file("deleted.json", service_account_key(TRAINER)[0]),
            "",
            everywhere(
                "Google did not accept the service account's key (invalid_grant: Invalid JWT Signature). "
                "Make a new key for the file that GOOGLE_APPLICATION_CREDENTIALS names"
            ),
        ),
        "key of an account that is gone": (
            file("gone.json", unknown),
            "",
            everywhere(
                "Google did not accept the service account's key (invalid_grant: Invalid grant: account not found). "
                "Make a new key for the file that GOOGLE_APPLICATION_CREDENTIALS names"
            ),
        ),
        "external account, as the service account": (external("acting", kubernetes.token(ours), TRAINER), "", WORKS),
        "external account alone": (external("itself", kubernetes.token(ours), None), "", WORKS),
        "external account without a role": (external("no-role", kubernetes.token(theirs), None), "", no_role(STRANGER)),
        "external account that may not act": (
            external("not-acting", kubernetes.token(theirs), TRAINER),
            "",
            everywhere(
                f"Google denied impersonation of the service account (HTTP 403: {DENIED}). Grant "
                "roles/iam.workloadIdentityUser on the service account of the credential configuration to the pool's "
                "principal"
            ),
        ),
        "external account of another audience": (
            external("audience", kubernetes.token(ours, audience="vault"), TRAINER),
            "",
            everywhere(
                "Google did not accept the provider's token (invalid_grant: The audience in ID Token [vault] does not "
                "match the expected audience). Compare its issuer and audience with those of the workload identity "
                "provider"
            ),
        ),
        "external account signed by another cluster": (
            external("signature", Cluster().token(ours), TRAINER),
            "",
            everywhere(
                "Google did not accept the provider's token (invalid_grant: Invalid ID Token signature). "
                "Compare its issuer and audience with those of the workload identity provider"
            ),
        ),
        "external account without its token": (
            external("no-token", None, TRAINER),
            "",
            everywhere(
                "File '/nowhere/token' was not found. Mount the token where the credential configuration names it"
            ),
        ),
        "workload identity": ("", pod("team-a", "trainer", TRAINER), WORKS),
        "workload identity without a Google account": ("", pod("team-a", "direct"), WORKS),
        "workload identity without a role": ("", pod("team-a", "default"), no_role(f"{DIRECT}/default")),
        "workload identity that is not bound": (
            "",
            pod("team-b", "trainer", TRAINER),
            everywhere(
                "the metadata server gives no token (HTTP 403: Unable to generate access token; IAM returned 403 "
                f"Forbidden: {DENIED}). Check the pod's Kubernetes service account: its annotation "
                "iam.gke.io/gcp-service-account names a Google one, on which it needs roles/iam.workloadIdentityUser"
            ),
        ),
    }
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("STORAGE_EMULATOR_HOST", "NO_GCE_CHECK")
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(google.pod)],
        input=json.dumps({name: case[:2] for name, case in cases.items()}),
        env={**inherited, "MPTRAINING_STORAGE_RETRY_SECONDS": "1", **google.environment()},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: case[2] for name, case in cases.items()}
