"""An API server with the requests of the board alone: reviews, jobs with a watch, pods and events; over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mptraining.cluster.api import ApiServer

Object = dict[str, Any]
JOBS = "mptrainingjobs"
TIME = "2026-01-01T00:00:00Z"
# The audience of the API server itself.
OWN_AUDIENCE = "https://kubernetes.default.svc"


def job(namespace: str, name: str, *, uri: str | None = None, uid: str = "", **status: Any) -> Object:
    metadata = {"namespace": namespace, "name": name, "uid": uid or f"{namespace}-{name}", "creationTimestamp": TIME}
    spec: Object = {"accelerator": {"type": "cpu"}} | ({"output": {"uri": uri}} if uri else {})
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", **status}}


@dataclass
class FakeKubernetes:
    """`tokens`: user and audience by token; `rights`: user, verb, resource and namespace ("" is all)."""

    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    rights: set[tuple[str, str, str, str]] = field(default_factory=set)
    jobs: dict[tuple[str, str], Object] = field(default_factory=dict)
    others: dict[str, list[Object]] = field(default_factory=dict)
    away: bool = False
    reviews: list[tuple[str, Object]] = field(default_factory=list)
    changes: list[Object] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopping: bool = False
    # Watches are answered 410, lists and watches 403; and the number of times that all watches were ended.
    gone: bool = False
    forbidden: bool = False
    # Watches end at once without an event; and the number of all watches.
    brief: bool = False
    watches: int = 0
    # Namespaces whose jobs may not be listed.
    refused: set[str] = field(default_factory=set)
    cuts: int = 0

    def cut(self) -> None:
        """End all watches."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def allow(self, user: str, namespace: str, *rights: str) -> None:
        """Grant rights such as "list mptrainingjobs", "get pods/log"."""
        self.rights |= {(user, *each.split(" "), namespace) for each in rights}  # type: ignore[arg-type]

    def put(self, document: Object) -> None:
        key = document["metadata"]["namespace"], document["metadata"]["name"]
        with self.changed:
            kind = "MODIFIED" if key in self.jobs else "ADDED"
            self.jobs[key] = document
            self._change(kind, document)

    def delete(self, namespace: str, name: str) -> None:
        with self.changed:
            self._change("DELETED", self.jobs.pop((namespace, name)))

    def _change(self, kind: str, document: Object) -> None:
        version = str(len(self.changes) + 1)
        metadata = document["metadata"] | {"resourceVersion": version}
        self.changes.append({"type": kind, "object": document | {"metadata": metadata}})
        self.changed.notify_all()

    def token_review(self, spec: Object) -> Object:
        user, audience = self.tokens.get(spec["token"], ("", ""))
        asked = spec.get("audiences") or [OWN_AUDIENCE]
        if audience not in asked:
            return {"authenticated": False}
        return {"authenticated": True, "user": {"username": user, "groups": ["people"]}, "audiences": [audience]}

    def access_review(self, spec: Object) -> Object:
        about = spec["resourceAttributes"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        asked = {(spec["user"], about["verb"], resource, each) for each in ("", about.get("namespace", ""))}
        return {"allowed": bool(asked & self.rights)}

    @property
    def count(self) -> int:
        return len(self.reviews)


@contextmanager
def served(fake: FakeKubernetes) -> Iterator[ApiServer]:
    """Serve the fake; yield a connection to it."""
    from kubernetes import client

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            return

        def _send(self, code: int, body: Object) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if fake.away:
                self._send(500, {"reason": "InternalError", "message": "etcd does not answer"})
                return
            fake.reviews.append((sent["kind"], sent["spec"]))
            token = sent["kind"] == "TokenReview"
            status = fake.token_review(sent["spec"]) if token else fake.access_review(sent["spec"])
            self._send(201, {**sent, "status": status})

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            parts = url.path.strip("/").split("/")
            namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else None
            rest = parts[parts.index("namespaces") + 2 :] if namespace else [parts[-1]]
            if fake.forbidden or namespace in fake.refused:
                self._send(403, {"reason": "Forbidden", "message": "the board may not list mptrainingjobs"})
            elif query.get("watch"):
                self._watch(namespace, int(query["resourceVersion"]))
            elif rest[0] == JOBS and len(rest) == 2:
                found = fake.jobs.get((namespace or "", rest[1]))
                self._send(200, found) if found else self._send(404, {"reason": "NotFound", "message": "no such job"})
            else:
                with fake.changed:
                    items = list(fake.jobs.values()) if rest[0] == JOBS else fake.others.get(rest[0], [])
                    version = str(len(fake.changes))
                kept = [each for each in items if namespace in (None, each["metadata"]["namespace"])]
                self._send(200, {"metadata": {"resourceVersion": version}, "items": kept})

        def _watch(self, namespace: str | None, version: int) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            cuts = fake.cuts
            fake.watches += 1
            if fake.brief:
                return
            if fake.gone:
                with fake.changed:
                    while not fake.stopping and fake.gone and len(fake.changes) <= version:
                        fake.changed.wait(0.1)
                status = {"code": 410, "reason": "Expired", "message": "too old resource version"}
                self.wfile.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                return
            while not fake.stopping and fake.cuts == cuts:
                with fake.changed:
                    while not fake.stopping and fake.cuts == cuts and len(fake.changes) <= version:
                        fake.changed.wait()
                    new, version = fake.changes[version:], len(fake.changes)
                for each in new:
                    if namespace in (None, each["object"]["metadata"]["namespace"]):
                        self.wfile.write(json.dumps(each).encode() + b"\n")
                self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    configuration.retries = False
    with client.ApiClient(configuration) as api:
        try:
            yield ApiServer(api, name="fake", namespace="default")
        finally:
            with fake.changed:
                fake.stopping = True
                fake.changed.notify_all()
            server.shutdown()
            server.server_close()
            thread.join(5)
