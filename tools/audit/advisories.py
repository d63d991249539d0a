"""A copy of advisories in OSV's format on this machine, served as api.osv.dev serves them, where it is not in reach.

The copy is a folder of YAML or JSON files, such as a clone of github.com/pypa/advisory-database or the unpacked
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

Advisory = Mapping[str, Any]


def load(folder: Path) -> dict[str, list[Advisory]]:
    """Return the advisories of PyPI by package. Raises ValueError for a folder without any."""
    found: dict[str, list[Advisory]] = {}
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".yaml", ".json") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        advisory = json.loads(text) if path.suffix == ".json" else yaml.load(text, loader)
        if isinstance(advisory, Mapping) and "affected" in advisory:
            names = {
                canonicalize_name(each["package"]["name"])
                for each in advisory["affected"]
                if each.get("package", {}).get("ecosystem") == "PyPI"
            }
            for name in names:
                found.setdefault(name, []).append(advisory)
    if not found:
        raise ValueError(f"{folder}: no advisory in OSV's format in it; expected a clone of pypa/advisory-database")
    return found


def newest(advisories: Mapping[str, Sequence[Advisory]]) -> datetime:
    """Return the time of the last change, which is the age of the copy."""
    changed = (_time(each["modified"]) for listed in advisories.values() for each in listed)
    return max(changed)


def _time(value: Any) -> datetime:
    # YAML reads times itself, without a zone.
    return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).replace(tzinfo=None)


def affecting(advisories: Mapping[str, Sequence[Advisory]], package: str, version: str) -> list[Advisory]:
    """Return the advisories that affect this version and were not withdrawn."""
    name = canonicalize_name(package)
    return [
        advisory
        for advisory in advisories.get(name, ())
        if not advisory.get("withdrawn")
        and any(
            canonicalize_name(each["package"]["name"]) == name and _affects(each, version)
            for each in advisory["affected"]
        )
    ]


def _affects(affected: Mapping[str, Any], version: str) -> bool:
    """Return whether the version is listed or in one of the ranges, as OSV's schema evaluates them."""
    if version in affected.get("versions", ()):
        return True
    ours = Version(version)
    for each in affected.get("ranges", ()):
        if each["type"] != "ECOSYSTEM":
            continue
        vulnerable = False
        for event in sorted(each["events"], key=_order):
            if "introduced" in event and (event["introduced"] == "0" or ours >= _version(event["introduced"])):
                vulnerable = True
            elif ("fixed" in event and ours >= _version(event["fixed"])) or (
                "last_affected" in event and ours > _version(event["last_affected"])
            ):
                vulnerable = False
        if vulnerable:
            return True
    return False


def _order(event: Mapping[str, str]) -> tuple[Version, bool]:
    (value,) = event.values()
    return _version(value), "introduced" not in event


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        # Of a project before PEP 440; nothing that is locked is as old.
        return Version("0")


@contextmanager
def serve(advisories: Mapping[str, Sequence[Advisory]]) -> Iterator[str]:
    """Answer OSV's queries on loopback; yields the URL for `pip-audit --osv-url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = affecting(advisories, query["package"]["name"], query["version"])
            body = json.dumps({"vulns": found} if found else {}, default=str).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the terminal for the report."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()
