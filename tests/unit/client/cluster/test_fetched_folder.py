"""A folder that is fetched file by file: whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining.cluster.folder_source import FetchedFolder, RemoteFile
from mptraining_api.problems import InvalidData

FILES = [RemoteFile("a.txt", 1, "1"), RemoteFile("sub/b.txt", 1, "1")]


def add(folder: FetchedFolder, *files: RemoteFile) -> None:
    for file in files:
        with folder.add(file) as opened:
            opened.write(file.version.encode())


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_it_is_whole_or_not_there(tmp_path: Path) -> None:
    def interrupted() -> None:
        with FetchedFolder(tmp_path / "run", overwrite=False) as folder:
            add(folder, FILES[0])
            with folder.add(FILES[1]) as opened:
                opened.write(b"half")
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with FetchedFolder(tmp_path / "run", overwrite=False) as folder:
        add(folder, *FILES)
        assert not (tmp_path / "run").exists()
        assert folder.publish() == tmp_path / "run"
    assert names(tmp_path) == ["run/a.txt", "run/sub/b.txt"]


def test_an_existing_folder_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    with pytest.raises(InvalidData, match=r"run: exists\. Replace it with --overwrite, or name another folder"):
        FetchedFolder(tmp_path / "run", overwrite=False).__enter__()
    assert names(tmp_path) == ["run/mine.txt"]
    with FetchedFolder(tmp_path / "run", overwrite=True) as folder:
        add(folder, *FILES)
        assert names(tmp_path / "run") == ["mine.txt"], "until the new one is complete"
        folder.publish()
    assert names(tmp_path) == ["run/a.txt", "run/sub/b.txt"]


@pytest.mark.parametrize("path", ["../../.bashrc", "/etc/cron.d/job", "a/../../out", "."])
def test_no_file_is_written_outside_of_the_folder(path: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidData, match="is outside of the folder"),
        FetchedFolder(tmp_path / "home" / "run", overwrite=False) as folder,
        folder.add(RemoteFile(path, 1, "1")),
    ):
        pass
    assert names(tmp_path) == []
