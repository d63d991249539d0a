"""The commands that docs/guide/install.md tells people are those that the round of a release runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kind.engine import ROOT
from release.plan import Request, names
from release.signatures import BILLS, PROVENANCE, Verifier

PAGE = (ROOT / "docs" / "guide" / "install.md").read_text(encoding="utf-8")
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
VERIFIER = Verifier("cosign", Path("cosign.pub"))
NAMES = names(Request("0.2.0", "registry.example.com/team", "https://index.example/"))
OPERATOR = NAMES.images[0].reference


@pytest.mark.parametrize(
    "command",
    [
        VERIFIER.blob(Path("SHA256SUMS")),
        VERIFIER.blob(Path("install.yaml")),
        VERIFIER.reference(OPERATOR),
        VERIFIER.reference(NAMES.chart),
        VERIFIER.attestation(OPERATOR, PROVENANCE),
        VERIFIER.attestation(OPERATOR, BILLS[".cdx.json"]),
        VERIFIER.statement(Path("provenance.intoto.json"), Path(NAMES.wheel)),
        ["oras", "pull", NAMES.files],
        ["helm", "install", "mptraining", f"oci://{NAMES.chart.rpartition(':')[0]}", "--version", "0.2.0"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_the_page_has_the_command(command: list[str]) -> None:
    assert " ".join(command) in PAGE.replace(" \\\n ", "")


def test_a_keyless_signature_is_verified_by_identity_and_issuer() -> None:
    keyless = Verifier("cosign", identity="…", issuer="…").flags
    assert " ".join(keyless) in PAGE


# Part of a release (the wheel's description, the chart's archive), or of the site that describes it.
RELEASED = ["README.md", "charts/mptraining/README.md", "docs/faq.md", *(f"docs/guide/{each.name}" for each in GUIDE)]


@pytest.mark.parametrize("document", RELEASED)
def test_no_document_of_a_release_denies_that_it_is_published(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    denied = r"(?i)\b(not (yet )?(published|on PyPI)|no (published|package on)|no version is)\b"
    assert [line for line in text.splitlines() if re.search(denied, line)] == []
