"""Figures of a small repository."""

from __future__ import annotations

from pathlib import Path

from tools.structure import ROOT, figures, importers, modules


def test_modules_folders_and_importers_are_counted(tmp_path: Path) -> None:
    package = tmp_path / "api" / "contract"
    files = {
        "__init__.py": "",
        "spec.py": "from contract import names\nimport contract.rules.check\n",
        "names.py": "import json\n",
        "rules/check.py": "from contract.names import name\n\n\ndef check(): ...\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (tmp_path / "README.md").write_text("one\ntwo\n")
    known = modules(tmp_path)
    assert set(known) == {"contract.spec", "contract.names", "contract.rules.check"}
    assert importers(known) == {
        "contract.names": {"contract.spec", "contract.rules.check"},
        "contract.rules.check": {"contract.spec"},
    }
    found = figures(tmp_path)
    assert (found["modules"], found["folders"], found["largest folder"]) == (3, 2, "api/contract (2)")
    assert (found["modules with one importer"], found["longest module, lines"]) == (1, "contract.rules.check (4)")
    assert (found["lines of product"], found["lines of tests"], found["lines of docs"]) == (7, 0, 2)


def test_this_repository_has_its_packages() -> None:
    assert {"mptraining_api.spec", "mptraining_trainer.loop.train_loop", "mptraining.cli.main"} <= set(modules(ROOT))
