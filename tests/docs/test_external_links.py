"""The external links of the documents, as text: the nightly workflow requests each (`make links`)."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tools import links

# A link to another host is for a person to judge: whose page it is, and whether it will be there in a year.
HOSTS = {
    "cli.github.com",
    "docs.cloud.google.com",
    "docs.sigstore.dev",
    "github.com",
    "keepachangelog.com",
    "keras.io",
    "kind.sigs.k8s.io",
    "kubernetes.io",
    "oauth2-proxy.github.io",
    "optuna.org",
    "semver.org",
    "volcano.sh",
    "www.kubeflow.org",
}
# Documentation that moved, and where to.
MOVED = {
    r"https://cloud\.google\.com/.*/docs\b": "https://docs.cloud.google.com",
    r"https://(www\.)?kubeflow\.org/docs/components/training\b": "https://www.kubeflow.org/docs/components/trainer",
}
ALL = [
    pytest.param(address, id=f"{path.relative_to(links.ROOT)}:{line}")
    for path in links.documents()
    for line, address in links.links(path.read_text(encoding="utf-8"))
]


def mistake(address: str) -> str | None:
    """Return what is wrong with the text of a link."""
    parts = urlsplit(address)
    if parts.scheme != "https" or parts.port or parts.username or re.search(r"[^!-~]|[<>\"'`{}|\\^]", address):
        return "expected https://HOST/PATH"
    if new := next((new for old, new in MOVED.items() if re.match(old, address)), None):
        return f"this documentation is now at {new}"
    return (
        None if parts.hostname in HOSTS else f"{parts.hostname} is not in HOSTS of this test: add it, or cite another"
    )


@pytest.mark.parametrize("address", ALL)
def test_an_external_link_is_https_to_a_known_host(address: str) -> None:
    assert mistake(address) is None


def test_links_are_found_in_prose_and_in_commands() -> None:
    text = "[a](https://one.example/a#b) and <https://two.example>\n\n```bash\ngit clone https://three.example/c\n```"
    assert [*links.links(text)] == [
        (1, "https://one.example/a#b"),
        (1, "https://two.example"),
        (4, "https://three.example/c"),
    ]
    assert {"README.md", "SECURITY.md", "docs/guide/train.md"} <= {
        path.relative_to(links.ROOT).as_posix() for path in links.documents()
    }
    assert len(ALL) > 10


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://kubernetes.io/docs/", None),
        ("http://kubernetes.io/docs/", "expected https"),
        ("https://kubernetes.io:8443/docs/", "expected https"),
        ("https://cloud.google.com/kubernetes-engine/docs/how-to/gpus", "docs.cloud.google.com"),
        ("https://kubernetes.example/", "not in HOSTS"),
    ],
)
def test_a_mistake_names_what_was_expected(address: str, found: str | None) -> None:
    told = mistake(address)
    assert told is None if found is None else found in (told or "")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = {"/new": 200, "/": 301, "/old": 301, "/latest": 302}.get(self.path, 404)
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", "/new")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def test_what_is_gone_or_has_moved_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    answers = {path: links.problem(f"{server}/{path}") for path in ("new#part", "latest", "", "old", "gone")}
    assert answers == {
        "new#part": None,
        "latest": None,
        "": None,
        "old": f"moved to {server}/new",
        "gone": "404 Not Found",
    }
