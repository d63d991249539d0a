"""Every link and every module that the documents name leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mptraining
from tests.unit.docs.blocks import EXECUTED, ROOT

DOCUMENTS = (
    *EXECUTED,
    "docs/architecture.md",
    "docs/security.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "charts/mptraining/README.md",
)


_LINK = re.compile(r"\]\(([^)\s]+)\)")


_MODULE = re.compile(r"`(mptraining(?:_api|_operator|_records|_trainer|))\.([a-z_0-9.]+)`")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    path = ROOT / document
    for link in _LINK.findall(_prose(path)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{document}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{document}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_module_that_is_named_exists(document: str) -> None:
    roots = {
        "mptraining_api": "api",
        "mptraining_operator": "operator",
        "mptraining_records": "trainer",
        "mptraining_trainer": "trainer",
    }
    for package, module in _MODULE.findall(_prose(ROOT / document)):
        path = (ROOT / roots.get(package, "client") / package).joinpath(*module.split("."))
        # `mptraining.dev/…` is the group of the resource, `mptraining.compare` a public function.
        # `mptraining.tensorflow_cloud.run` is a function of a module.
        files = (path.with_suffix(".py"), path.parent.with_suffix(".py"))
        found = module in ("dev", *mptraining.__all__) or path.is_dir() or any(file.exists() for file in files)
        assert found, f"{document}: {package}.{module}"


def _prose(path: Path) -> str:
    """Return the text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(path: Path) -> set[str]:
    """Return the headings as GitHub's link anchors."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
