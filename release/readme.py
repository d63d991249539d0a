"""Hatchling's metadata hook: README.md as the package's description, with links that work on a package index.

MPTRAINING_REPOSITORY (OWNER/NAME on GitHub) makes relative links and pictures absolute, to the tag of the version, and
adds the project's URLs. Without it no address is known: README.md is the description as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# Markdown in a block of code is no link.
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class ReadmeHook(MetadataHookInterface):
    """The fields `readme` and `urls` of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        repository, tag = os.environ.get("MPTRAINING_REPOSITORY", ""), f"v{metadata['version']}"
        # Given in any case: a field that a hook leaves out is marked as dynamic in the wheel.
        metadata["urls"] = {}
        if repository:
            text = with_absolute_links(text, root, repository, tag)
            address = f"https://github.com/{repository}"
            changelog = f"{address}/blob/{tag}/CHANGELOG.md"
            metadata["urls"] = {"Source": address, "Changelog": changelog, "Issues": f"{address}/issues"}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, root: Path, repository: str, tag: str) -> str:
    """Return Markdown of the folder `root` with each relative link as one to the repository at the tag."""

    def absolute(found: re.Match[str]) -> str:
        picture, label, link = found.groups()
        if "://" in link or link.startswith(("#", "mailto:")):
            return found[0]
        kind = "raw" if picture else "tree" if (root / link.partition("#")[0]).is_dir() else "blob"
        return f"{picture}[{label}](https://github.com/{repository}/{kind}/{tag}/{link})"

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)
