"""The notes of a release: its section of the changelog, and what was published with its digests. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FILE = "notes.md"


def notes(
    section: str, *, version: str, references: Mapping[str, str], files: Mapping[str, str], verification: Sequence[str]
) -> str:
    """Return the notes as Markdown.

    `references`: names in the registry with their digests; `files`: SHA-256; `verification`: cosign's flags.
    """
    flags = " ".join(verification)
    return "\n".join(
        [
            f"# mptraining {version}",
            "",
            section,
            "",
            "## Published",
            "",
            f"docs/guide/install.md has the commands that install and verify. cosign verifies with `{flags}`.",
            "",
            "| in the registry | digest |",
            "|---|---|",
            *(f"| `{name}` | `{digest}` |" for name, digest in sorted(references.items())),
            "",
            "| file | SHA-256 |",
            "|---|---|",
            *(f"| `{name}` | `{digest}` |" for name, digest in sorted(files.items())),
            "",
        ]
    )
