"""Rules of the page's modules, which the bundler of the exported page relies on."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import mptraining.board

STATIC = Path(mptraining.board.__file__).parent / "static"
MODULES = sorted(each for each in STATIC.rglob("*.js") if "uplot" not in each.parts)
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)
_DESTRUCTURED = re.compile(r"^(?:export )?const \[([^\]]+)\]", re.MULTILINE)


def test_names_at_the_top_of_modules_are_unique_because_the_exported_page_is_one_script() -> None:
    names: Counter[str] = Counter()
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        names.update(_DECLARED.findall(text))
        names.update(name.strip() for group in _DESTRUCTURED.findall(text) for name in group.split(","))
    assert [name for name, count in names.items() if count > 1] == []


def test_modules_are_short_and_use_no_markup_from_text() -> None:
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        assert text.count("\n") <= 250, module.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), f"{module.name} names another host"


def test_uplot_is_the_unchanged_file_of_the_version_that_is_named() -> None:
    named = (STATIC / "uplot" / "VERSION").read_text(encoding="utf-8")
    script = (STATIC / "uplot" / "uPlot.iife.min.js").read_bytes()
    assert "uPlot 1.6.32" in named
    assert b"(v1.6.32)" in script[:100]
    assert hashlib.sha256(script).hexdigest() == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "MIT" in (STATIC / "uplot" / "LICENSE").read_text(encoding="utf-8")
