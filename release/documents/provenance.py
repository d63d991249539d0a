"""SLSA provenance of a release: an in-toto statement that says from which commit and by which build it came. Pure.

https://slsa.dev/spec/v1.1/provenance, https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FILE = "provenance.intoto.json"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://mptraining.dev/release/v1"


@dataclass(frozen=True)
class Build:
    """Where a release was built. `builder`: a URI of the CI's runner, or of a person's machine; times are RFC 3339."""

    repository: str
    commit: str
    builder: str
    started: str
    finished: str
    invocation: str = ""


def predicate(
    build: Build, *, parameters: Mapping[str, Any], materials: Mapping[str, str], base: str = ""
) -> dict[str, Any]:
    """Return the predicate.

    `materials`: files that decided what was installed, by name, with their SHA-256; `base`: of the images,
    NAME@sha256:…, or empty for one that was made of this machine's packages.
    """
    source = {"uri": f"git+{build.repository}", "digest": {"gitCommit": build.commit}}
    files = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(materials.items())]
    name, _, digest = base.partition("@sha256:")
    images = [{"uri": f"oci://{name}", "digest": {"sha256": digest}}] if base else []
    run = {"invocationId": build.invocation} if build.invocation else {}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": dict(parameters),
            "internalParameters": {},
            "resolvedDependencies": [source, *images, *files],
        },
        "runDetails": {
            "builder": {"id": build.builder},
            "metadata": {**run, "startedOn": build.started, "finishedOn": build.finished},
        },
    }


def statement(subjects: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement over `subjects`: names of files and references of images, with their SHA-256."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
            for name, digest in sorted(subjects.items())
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": dict(about),
    }
