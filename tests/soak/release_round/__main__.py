"""A whole release, with the commands and times: published on loopback, verified, installed by pip, Helm and kubectl.

python -m tests.soak.release_round --write docs/release.md

Requires `make release-tools`; and a new cluster, `make cluster-down cluster`, unless --without-kind. The exit code is 1
if a step fails or a tampered artifact is accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kind.engine import ROOT, Failed, podman
from release.facts import plain_http
from release.programs import program
from tests.soak import document_table
from tests.soak.release_round import checkout, on_kind, stranger, tampering
from tests.soak.release_round.place import VERSION, Place, passwords
from tests.testbed import release_servers
from tests.testbed.processes import free_ports

BEGIN, END = "<!-- the round, made by `make release-round` -->", "<!-- the round until here -->"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.release_round", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--write", type=Path, help="the document that the tables go into")
    parser.add_argument("--without-kind", action="store_true", help="leave out what needs the cluster")
    parser.add_argument("--python", default=sys.executable, help="the stranger's Python")
    given = parser.parse_args(arguments)
    missing = release_servers.missing()
    if missing:
        sys.stderr.write(f"round: {missing}\n")
        return 1
    passwords()
    began = time.monotonic()
    registry_port, index_port = free_ports(2)
    place = Place(ROOT / "build" / "release-round" / str(os.getpid()), registry_port, index_port)
    place.folder.mkdir(parents=True)
    try:
        with ExitStack() as servers:
            # The nodes reach the host by the address of their network alone.
            address = "127.0.0.1" if given.without_kind else "0.0.0.0"
            servers.enter_context(
                release_servers.registry(place.folder / "registry", port=registry_port, address=address)
            )
            servers.enter_context(release_servers.package_index(place.folder / "index", port=index_port))
            refusals = _round(place, given)
    except Failed as failed:
        sys.stderr.write(f"round: {failed}\n")
        return 1
    # Gigabytes; after a failure they stay, to be looked at.
    shutil.rmtree(place.folder)
    text = tables(place, refusals, time.monotonic() - began, with_kind=not given.without_kind)
    print(text)
    if given.write:
        document_table.put(given.write, text, begin=BEGIN, end=END)
    return 0


def _round(place: Place, given: argparse.Namespace) -> list[tampering.Refusal]:
    tree = checkout.prepare(place)
    checkout.release(place, tree)
    made = json.loads((tree / "build" / "release" / VERSION / "release.json").read_text())["digests"]
    verify(place)
    whole = stranger.first_job(place, given.python)
    place.remember("a stranger: all of it", "", whole)
    if not given.without_kind:
        on_kind.install_both_ways(place, tree / "manifests" / "examples")
    return tampering.all_ways(place, made, None if given.without_kind else podman())


def verify(place: Place) -> None:
    """Download the files and verify everything as docs/guide/install.md says."""
    files = place.names.files
    flags = (*plain_http(files), "--no-tty", "--output")
    place.timed("files downloaded", program("oras"), "pull", *flags, place.files, files)
    place.timed("checksums", "sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS", folder=place.files)
    for name in ("SHA256SUMS", "install.yaml", place.names.wheel):
        place.timed(f"signature of {name}", *place.verifier.blob(place.files / name))
    statement = place.files / "provenance.intoto.json"
    place.timed("provenance of the wheel", *place.verifier.statement(statement, place.files / place.names.wheel))
    for reference in place.names.references:
        place.timed(f"signature of {place.plain(reference)}", *place.verifier.reference(reference))
    operator = place.names.images[0].reference
    for kind in ("slsaprovenance1", "cyclonedx", "spdxjson"):
        place.timed(f"attestation {kind}", *place.verifier.attestation(operator, kind))


def tables(place: Place, refusals: Sequence[tampering.Refusal], seconds: float, *, with_kind: bool) -> str:
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    kind = "three nodes of kind" if with_kind else "no cluster"
    return "\n".join(
        [
            f"{where}, {kind}; {seconds:.0f} s in all. REGISTRY and INDEX are on loopback.",
            "",
            "| step | command | seconds |",
            "|---|---|---|",
            *(f"| {what} | {_code(command)} | {took:.1f} |" for what, command, took in place.rows),
            "",
            "| tampered with | refused by | with |",
            "|---|---|---|",
            *(f"| {each.changed} | {_code(each.command)} | {_cut(each.answer)} |" for each in refusals),
        ]
    )


def _code(text: str) -> str:
    return f"`{_cut(text)}`" if text else ""


def _cut(text: str, most: int = 150) -> str:
    plain = text.replace("|", "¦")
    return plain if len(plain) <= most else plain[: most - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
