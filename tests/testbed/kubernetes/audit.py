"""The API server's audit log: the user of each request, its result, and its times to the microsecond.

No client can measure this as well: the log costs the measured programs nothing and has one clock for all of them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Request:
    """One request. Times are seconds since 1970; a watch ends when its stream does. `name` is the one in the path or,
    for a creation, the object's; of a pod whose name the server had to generate, the given beginning.
    """

    agent: str
    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    began: float
    ended: float


def flags(folder: Path) -> list[str]:
    """Return arguments for kube-apiserver; write the policy that they name."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
        "omitManagedFields": True,
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            # With the request's object, whose generateName identifies the job.
            {"level": "Request", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods"]}]},
            {"level": "Metadata"},
        ],
    }
    file = folder / "audit-policy.yaml"
    file.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
    # The default of 100 MB begins another file after some 4,000 jobs.
    return [f"--audit-policy-file={file}", f"--audit-log-path={folder / 'audit.log'}", "--audit-log-maxsize=8000"]


def read(log: Path) -> Iterator[Request]:
    """Return the requests in a log, in its order, without a line that is still being written."""
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield _request(json.loads(line))


def _request(event: dict[str, object]) -> Request:
    reference, status, user = (_mapping(event.get(key)) for key in ("objectRef", "responseStatus", "user"))
    code = status.get("code", 0)
    sent = _mapping(_mapping(event.get("requestObject")).get("metadata"))
    return Request(
        agent=str(event.get("userAgent", "")),
        user=str(user.get("username", "")),
        verb=str(event["verb"]),
        resource=str(reference.get("resource", "")),
        subresource=str(reference.get("subresource", "")),
        namespace=str(reference.get("namespace", "")),
        name=str(reference.get("name") or sent.get("generateName", "")),
        code=code if isinstance(code, int) else 0,
        began=_seconds(str(event["requestReceivedTimestamp"])),
        ended=_seconds(str(event["stageTimestamp"])),
    )


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()
