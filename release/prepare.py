"""`--prepare`: the version in pyproject.toml, Chart.yaml and CHANGELOG.md, for a person to review and commit."""

from __future__ import annotations

import re
from pathlib import Path

from kind.engine import Failed
from release.documents.changelog import with_version
from release.plan import chart_version


def prepare(root: Path, version: str, date: str) -> list[str]:
    """Write the files and return their names; a version that is written already stays. Raises Failed."""
    try:
        semantic = chart_version(version)
    except ValueError as error:
        raise Failed(f"--version: {error}") from None
    texts: dict[str, str] = {}
    for name, pattern, value in (
        ("pyproject.toml", r'^(version = ")[^"]*(")', version),
        ("charts/mptraining/Chart.yaml", r"^(version: )\S+()", semantic),
        ("charts/mptraining/Chart.yaml", r"^(appVersion: )\S+()", version),
    ):
        text = texts.get(name) or (root / name).read_text(encoding="utf-8")
        texts[name], found = re.subn(pattern, rf"\g<1>{value}\g<2>", text, count=1, flags=re.MULTILINE)
        if not found:
            raise Failed(f"{name}: no line with a version")
    try:
        texts["CHANGELOG.md"] = with_version((root / "CHANGELOG.md").read_text(encoding="utf-8"), version, date)
    except ValueError as error:
        raise Failed(str(error)) from None
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    return list(texts)
