"""cosign's commands that sign and verify, as lists of words. Pure.

With a key nothing leaves the machine: no transparency log, no timestamp. Without one cosign asks the CI's identity
provider for a certificate (keyless) and writes to the public log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

BUNDLE = ".sigstore.json"
PUBLIC_KEY = "cosign.pub"
PROVENANCE = "slsaprovenance1"
BILLS = {".cdx.json": "cyclonedx", ".spdx.json": "spdxjson"}
# The issuer of the identities of GitHub's workflows.
GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
# https://github.com/sigstore/protobuf-specs: no log and no timestamp authority is asked.
OFFLINE = json.dumps({"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"})


@dataclass(frozen=True)
class Signer:
    """`key`: the private key, and `offline` the file with `OFFLINE`; both None for keyless signatures."""

    cosign: str
    key: Path | None = None
    offline: Path | None = None

    def blob(self, file: Path) -> list[str]:
        """Sign a file; the signature is the bundle beside it."""
        return [self.cosign, "sign-blob", *self._with(), f"--bundle={file}{BUNDLE}", str(file)]

    def statement(self, file: Path) -> list[str]:
        """Sign an in-toto statement about files."""
        return [self.cosign, "attest-blob", *self._with(), f"--statement={file}", f"--bundle={file}{BUNDLE}"]

    def reference(self, reference: str) -> list[str]:
        """Sign what is in a registry, by its digest."""
        return [self.cosign, "sign", *self._with(), _by_digest(reference)]

    def attestation(self, reference: str, kind: str, predicate: Path) -> list[str]:
        """Attach a signed attestation to what is in a registry."""
        about = [f"--type={kind}", f"--predicate={predicate}"]
        return [self.cosign, "attest", *self._with(), *about, _by_digest(reference)]

    def _with(self) -> list[str]:
        offline = [f"--signing-config={self.offline}"] if self.offline else []
        return ["--yes", *([f"--key={self.key}"] if self.key else []), *offline]


@dataclass(frozen=True)
class Verifier:
    """By the public key, or by the identity of the CI that signed and its issuer."""

    cosign: str
    key: Path | None = None
    identity: str = ""
    issuer: str = ""

    def blob(self, file: Path) -> list[str]:
        return [self.cosign, "verify-blob", *self.flags, f"--bundle={file}{BUNDLE}", str(file)]

    def statement(self, statement: Path, file: Path) -> list[str]:
        """Verify that a signed statement is about this file."""
        about = [f"--type={PROVENANCE}", f"--bundle={statement}{BUNDLE}"]
        return [self.cosign, "verify-blob-attestation", *self.flags, *about, str(file)]

    def reference(self, reference: str) -> list[str]:
        return [self.cosign, "verify", *self.flags, reference]

    def attestation(self, reference: str, kind: str) -> list[str]:
        return [self.cosign, "verify-attestation", *self.flags, f"--type={kind}", reference]

    @property
    def flags(self) -> list[str]:
        """What says by whom the signature must be."""
        if self.key:
            # Signatures by a key are in no log.
            return [f"--key={self.key}", "--insecure-ignore-tlog=true"]
        return [f"--certificate-identity={self.identity}", f"--certificate-oidc-issuer={self.issuer}"]


def _by_digest(reference: str) -> str:
    if "@sha256:" not in reference:
        raise ValueError(f"{reference}: expected REPOSITORY@sha256:…, because a tag may move before it is signed")
    return reference
