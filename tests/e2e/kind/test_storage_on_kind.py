"""Storage as the guide's section describes it for platform engineers: its own YAML, on real kubelets.

Buckets are behind an emulator of Google that refuses requests without a token of its own (`identities`); claims have
the cluster's default class.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from hack.cluster.images import VERSION
from hack.cluster.installation import configure
from tests.e2e.kind import buckets, identities
from tests.testbed.google.emulator import external_account, service_account_key
from tests.testbed.google.identity import Provider, Realm
from tests.testbed.nodes.pods import RESTRICTED
from tests.unit.docs.blocks import blocks

PROJECT = "our-project"
TRAINER = f"trainer@{PROJECT}.iam.gserviceaccount.com"
POOL = "iam.googleapis.com/projects/123456789/locations/global/workloadIdentityPools/clusters"
AUDIENCE = f"//{POOL}/providers/kind"
USER = "roles/storage.objectUser"

# The YAML of the guide's section, by the name of the file or the heading's word.
GUIDE = [
    block for block in blocks("docs/guide/kubernetes.md") if block.section == "Storage" and block.language == "yaml"
]
FILES = {block.file: yaml.safe_load(block.text) for block in GUIDE if block.file}


def job(name: str, **parts: Any) -> dict[str, Any]:
    """Return the guide's job under another name, with parts of its `spec` replaced."""
    document: dict[str, Any] = yaml.safe_load(yaml.safe_dump(FILES["on-gke.yaml"]))
    spec = document["spec"]
    document["metadata"]["name"] = name
    spec["output"] = {"uri": f"gs://my-bucket/runs/{name}"}
    del spec["podTemplate"]
    document["spec"] = {**spec, **parts}
    return document


def read(key: str) -> Any:
    """Read an object of the bucket directly, without authentication."""
    return (
        f"/api/v1/namespaces/{buckets.NAMESPACE}/services/buckets:4443/proxy/storage/v1/b/my-bucket/o/{quote(key, '')}"
    )


def events(log: str, word: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.splitlines() if line.startswith('{"mptraining"')]
    return [each for each in found if each["kind"] == word]


@pytest.fixture(scope="module")
def google(kind: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The emulator of Google, which the operator's settings trust; returns the key file of the service account."""
    key, public = service_account_key(TRAINER, PROJECT)
    issuer = json.loads(kind.kubectl("get", "--raw", "/.well-known/openid-configuration"))["issuer"]
    signing = json.loads(kind.kubectl("get", "--raw", "/openid/v1/jwks"))["keys"]
    realm = Realm(
        secret=key["private_key_id"],
        project=PROJECT,
        keys={TRAINER: public},
        providers={AUDIENCE: Provider(issuer=issuer, audience=f"https:{AUDIENCE}", keys=tuple(signing))},
        users={
            TRAINER: (
                f"serviceAccount:{PROJECT}.svc.id.goog[{kind.namespace}/trainer]",
                f"principal://{POOL}/subject/system:serviceaccount:{kind.namespace}:default",
            )
        },
        grants={"my-bucket": {TRAINER: USER}},
    )
    with ThreadPoolExecutor() as pool:
        # Two rollouts, each of which mostly waits.
        trusting = pool.submit(configure, {"cpuFallback": True, "pods": {"caConfigMap": identities.AUTHORITY}})
        buckets.start(kind, tmp_path_factory.mktemp("buckets"))
        with identities.started(kind, realm, tmp_path_factory.mktemp("google")):
            trusting.result()
            yield key
            restored = pool.submit(configure, {"cpuFallback": True})
        restored.result()


def test_three_ways_of_credentials_read_and_write_a_bucket_and_a_fourth_is_refused(
    kind: Any, google: dict[str, Any]
) -> None:
    # On GKE: an annotation, and no change of the pod.
    account = FILES["trainer-account.yaml"]
    kind.apply(account, {**account, "metadata": {**account["metadata"], "name": "stranger"}})
    # A key in a Secret.
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "trainer-key"}}
    kind.apply({**secret, "stringData": {"key.json": json.dumps(google)}})
    # An external account: its configuration as gcloud writes it.
    config = external_account(AUDIENCE, "/var/run/google/token", TRAINER)
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "google-credentials"}}
    kind.apply({**config_map, "data": {"credentials.json": json.dumps(config)}})
    external = part("serviceAccountToken")
    token = external["podTemplate"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]
    assert token["audience"].startswith("https://iam.googleapis.com/projects/")
    token["audience"] = f"https:{AUDIENCE}"

    ways = {
        "on-gke": {"podTemplate": FILES["on-gke.yaml"]["spec"]["podTemplate"]},
        "by-key": part("trainer-key"),
        "external": external,
        "stranger": {"podTemplate": {"serviceAccountName": "stranger"}},
    }
    kind.apply(*(job(name, **parts) for name, parts in ways.items()))

    failed = kind.finished("stranger", "Failed")
    (told,) = (each for each in failed["conditions"] if each["type"] == "Failed")
    assert told["reason"] == "InvalidData"
    assert "the metadata server gives no token (HTTP 403" in told["message"]
    assert "roles/iam.workloadIdentityUser" in told["message"]
    for name in ("on-gke", "by-key", "external"):
        kind.finished(name)
        result = json.loads(kind.kubectl("get", "--raw", f"{read(f'runs/{name}/result.json')}?alt=media"))
        assert (result["reason"], result["step"]) == ("Succeeded", 4)
        model = json.loads(kind.kubectl("get", "--raw", read(f"runs/{name}/model/model.keras")))
        assert int(model["size"]) > 1000


def part(word: str) -> dict[str, Any]:
    """Return the one part of a spec in the guide's section that contains `word`."""
    (found,) = (yaml.safe_load(block.text) for block in GUIDE if not block.file and word in block.text)
    return dict(found)


def test_records_and_run_folder_on_claims_outlive_the_pod(kind: Any) -> None:
    claims = part("persistentVolumeClaim")
    for name in ("records", "flowers-runs"):
        claim = FILES["runs-claim.yaml"]
        kind.apply({**claim, "metadata": {"name": name}})
    fill(kind)
    kind.apply(
        job(
            "on-claims",
            **claims,
            program={"application": {"name": "mlp", "classes": 10}},
            training={"epochs": 300, "batchSize": {"global": 64}, "seed": 7},
            checkpoint={"everySteps": 100},
        )
    )
    kind.until("on-claims", lambda status: status.get("phase") == "Running")
    deadline = time.monotonic() + 400
    while not (saved := events(kind.logs("on-claims"), "Saved")):
        assert time.monotonic() < deadline, kind.logs("on-claims")[-3000:]
        time.sleep(0.3)
    # As a node disappears: without a signal to the process.
    kind.kubectl(
        "delete", "pod", "-n", kind.namespace, "-l", "mptraining.dev/job=on-claims", "--grace-period=0", "--force"
    )
    status = kind.finished("on-claims")
    assert [each["outcome"] for each in status["attempts"]] == ["ChildDeleted", "Succeeded"]
    (started,) = events(kind.logs("on-claims", attempt=2), "Started")
    assert started["firstStep"] >= saved[0]["step"] >= 100
    (finished,) = events(kind.logs("on-claims", attempt=2), "Finished")
    assert (finished["reason"], finished["step"]) == ("Succeeded", 300 * 22)


def fill(kind: Any) -> None:
    """Copy the digits of the trainer's image to the claim for records, which jobs only read."""
    container = {
        "name": "fill",
        "image": f"mptraining/trainer:{VERSION}",
        "command": ["sh", "-c", "cp /opt/mptraining/digits/* /records/"],
        "volumeMounts": [{"name": "records", "mountPath": "/records"}],
        "securityContext": RESTRICTED,
    }
    volumes = [{"name": "records", "persistentVolumeClaim": {"claimName": "records"}}]
    spec = {"restartPolicy": "Never", "volumes": volumes, "containers": [container]}
    kind.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fill"}, "spec": spec})
    done = "--for=jsonpath={.status.phase}=Succeeded"
    kind.kubectl("wait", "-n", kind.namespace, "pod/fill", done, "--timeout=300s")
