"""The operator passes references to Secrets to the trainer, and reads none of their values itself."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.pods.fields import PodTemplate
from mptraining_operator.resources.environment import SecretSources, secret_sources

MOUNTS = [{"name": "data", "mountPath": "/data"}, {"name": "key", "mountPath": "/var/key", "readOnly": True}]


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ({"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"configMapKeyRef": {}}}]}, SecretSources()),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, SecretSources(("A",))),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, SecretSources(("*",))),
        ({"envFrom": [{"prefix": "AWS_", "secretRef": {"name": "s"}}]}, SecretSources(("AWS_*",))),
        ({"volumes": [{"name": "key", "configMap": {"name": "c"}}], "volumeMounts": MOUNTS}, SecretSources()),
        (
            {"volumes": [{"name": "key", "secret": {"secretName": "s"}}], "volumeMounts": MOUNTS},
            SecretSources((), ("/var/key",)),
        ),
        (
            {
                "volumes": [{"name": "key", "projected": {"sources": [{"configMap": {}}, {"secret": {"name": "s"}}]}}],
                "volumeMounts": MOUNTS,
            },
            SecretSources((), ("/var/key",)),
        ),
    ],
)
def test_what_comes_from_a_secret(template: dict[str, Any], found: SecretSources) -> None:
    assert secret_sources(PodTemplate.parse(template), {}) == found


def test_a_proxy_with_a_password_is_a_secret_too() -> None:
    proxies = {"HTTP_PROXY": "http://user:password@proxy:3128", "NO_PROXY": "localhost"}
    assert secret_sources(PodTemplate(), proxies).environment() == {"MPTRAINING_SECRET_VARIABLES": "HTTP_PROXY"}
