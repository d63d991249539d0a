"""The archive of a release's node image."""

from __future__ import annotations

from pathlib import Path

import pytest

from kind.binaries import ARCHIVE_VARIABLE, NEWEST, TESTED, NotHere, archive


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive that the variable names."""
    path = tmp_path / "any-name.tar.zst"
    path.touch()
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(path))
    return path


def test_the_variable_names_the_archive_of_the_tested_release(named: Path) -> None:
    assert archive() == archive(TESTED) == named


def test_that_of_another_release_is_beside_it_under_its_version(named: Path) -> None:
    assert archive(NEWEST) is None
    beside = named.with_name(f"node-image-v{NEWEST}.tar.zst")
    beside.touch()
    assert archive(NEWEST) == beside


def test_an_archive_that_is_named_and_missing_is_an_error(named: Path) -> None:
    named.unlink()
    for version in (TESTED, NEWEST):
        with pytest.raises(NotHere, match=r"any-name\.tar\.zst: no such file"):
            archive(version)
