"""The engine that builds the images installs what is missing, and nothing that a machine has from elsewhere."""

from __future__ import annotations

import shutil

import pytest

from kind import engine


@pytest.mark.parametrize(("program", "installed"), [("/usr/bin/runc", False), (None, True)])
def test_runc_is_installed_where_no_program_of_that_name_exists(
    program: str | None, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: program)
    monkeypatch.setattr(engine, "_installed", lambda name: False)
    assert ("runc" in engine.missing_packages()) == installed
    assert "podman" in engine.missing_packages()
