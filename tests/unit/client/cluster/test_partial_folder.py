"""A folder that is fetched file by file: whole or not there, continued after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining.cluster.partial_folder import PartialFolder, RemoteFile
from mptraining_api.problems import InvalidData

FILES = [RemoteFile("a.txt", 1, "1"), RemoteFile("sub/b.txt", 1, "1")]


def add(folder: PartialFolder, *files: RemoteFile) -> None:
    for file in files:
        with folder.add(file) as opened:
            opened.write(file.version.encode())


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_it_is_whole_or_not_there(tmp_path: Path) -> None:
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        add(folder, *FILES)
        assert not (tmp_path / "run").exists()
        assert folder.publish(FILES) == tmp_path / "run"
    assert names(tmp_path) == ["run/a.txt", "run/sub/b.txt"]


def test_an_interrupted_fetch_from_the_same_source_continues(tmp_path: Path) -> None:
    def interrupted() -> None:
        with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
            add(folder, FILES[0])
            with folder.add(FILES[1]) as opened:
                opened.write(b"half")
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / "run").exists()
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        assert folder.missing(FILES) == [FILES[1]]
        assert folder.missing([RemoteFile("a.txt", 1, "2")]) == [RemoteFile("a.txt", 1, "2")], "written since"
        add(folder, FILES[1])
        folder.publish(FILES)
    assert (tmp_path / "run" / "sub" / "b.txt").read_bytes() == b"1"
    assert names(tmp_path) == ["run/a.txt", "run/sub/b.txt"]


def test_another_source_starts_again(tmp_path: Path) -> None:
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        add(folder, *FILES)
    with PartialFolder(tmp_path / "run", "another", overwrite=False) as folder:
        assert folder.missing(FILES) == FILES
        add(folder, FILES[0])
        folder.publish(FILES[:1])
    assert names(tmp_path / "run") == ["a.txt"]


def test_files_that_the_source_has_no_more_are_not_published(tmp_path: Path) -> None:
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        add(folder, *FILES)
        folder.publish(FILES[1:])
    assert names(tmp_path / "run") == ["sub/b.txt"]


def test_an_existing_folder_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    with pytest.raises(InvalidData, match=r"run: exists\. Replace it with --overwrite, or name another folder"):
        PartialFolder(tmp_path / "run", "source", overwrite=False).__enter__()
    assert names(tmp_path) == ["run/mine.txt"]
    with PartialFolder(tmp_path / "run", "source", overwrite=True) as folder:
        add(folder, *FILES)
        assert names(tmp_path / "run") == ["mine.txt"], "until the new one is complete"
        folder.publish(FILES)
    assert names(tmp_path) == ["run/a.txt", "run/sub/b.txt"]


def test_two_processes_do_not_fetch_to_one_folder(tmp_path: Path) -> None:
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        add(folder, FILES[0])
        with pytest.raises(InvalidData, match="another process is fetching to this folder"):
            PartialFolder(tmp_path / "run", "source", overwrite=False).__enter__()
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        assert folder.arrived_bytes == 1


@pytest.mark.parametrize("path", ["../../.bashrc", "/etc/cron.d/job", "a/../../out", "."])
def test_no_file_is_written_outside_of_the_folder(path: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidData, match="is outside of the folder"),
        PartialFolder(tmp_path / "home" / "run", "source", overwrite=False) as folder,
        folder.add(RemoteFile(path, 1, "1")),
    ):
        pass
    assert names(tmp_path) == []


def test_a_torn_last_line_of_the_list_costs_that_file(tmp_path: Path) -> None:
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        add(folder, *FILES)
    log = tmp_path / ".run.fetch" / "arrived.jsonl"
    log.write_text(log.read_text()[:-10])
    with PartialFolder(tmp_path / "run", "source", overwrite=False) as folder:
        assert folder.missing(FILES) == [FILES[1]]
