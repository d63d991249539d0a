"""The verb `source`: its downloads, checks and refusals, with real archives and a real object server."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mptraining_api import launch
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_records.storage import storage
from mptraining_trainer.source import prepare as source_prepare
from mptraining_trainer.source.prepare import prepare
from tests.testbed.source_archives import CODE, archived, files, resolved, tgz


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(("pack", "name"), [(tgz, "code.tgz"), (tgz, "code.tar.gz"), (zipped, "code.zip")])
def test_an_archive_of_a_mounted_disk(tmp_path: Path, pack: Any, name: str) -> None:
    job = archived(pack(CODE), str(tmp_path / name))
    said = prepare(job, {launch.SOURCE_FOLDER: str(tmp_path / "files")})
    assert files(tmp_path / "files") == CODE
    assert said == f"3 files, {sum(map(len, CODE.values()))} bytes from {tmp_path / name}"


def test_an_archive_of_a_bucket(tmp_path: Path, bucket: str) -> None:
    prepare(archived(tgz(CODE), f"{bucket}/code/first.tgz"), {launch.SOURCE_FOLDER: str(tmp_path / "files")})
    assert files(tmp_path / "files") == CODE


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    environment = {launch.SOURCE_FOLDER: str(tmp_path / "files")}
    prepare(archived(tgz({"old.py": b"", **CODE}), str(tmp_path / "code.tgz")), environment)
    prepare(archived(tgz(CODE), str(tmp_path / "code.tgz")), environment)
    assert files(tmp_path / "files") == CODE


def test_another_archive_than_the_job_names_is_not_unpacked(tmp_path: Path) -> None:
    uri = str(tmp_path / "code.tgz")
    archive = tgz(CODE)
    storage.write(uri, archive)
    job = resolved(archive={"uri": uri, "sha256": "0" * 64})
    with pytest.raises(InvalidSpec) as caught:
        prepare(job, {launch.SOURCE_FOLDER: str(tmp_path / "files")})
    digest = hashlib.sha256(archive).hexdigest()
    assert caught.value.where == "spec.source.archive.sha256"
    assert caught.value.found == f"{uri} has {digest}"
    assert caught.value.expected == "0" * 64
    assert not (tmp_path / "files").exists()


def test_an_archive_that_is_not_there(tmp_path: Path, bucket: str) -> None:
    for uri in (f"{bucket}/code.tgz", str(tmp_path / "code.tgz")):
        with pytest.raises(InvalidData, match="no such file or object"):
            prepare(resolved(archive={"uri": uri, "sha256": "0" * 64}), {launch.SOURCE_FOLDER: str(tmp_path / "files")})


def test_an_archive_with_data_in_it_is_not_even_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_prepare, "MOST_ARCHIVE_BYTES", 100)
    job = archived(tgz(CODE), str(tmp_path / "code.tgz"))
    with pytest.raises(InvalidData, match=r"bytes; expected a source archive of at most"):
        prepare(job, {launch.SOURCE_FOLDER: str(tmp_path / "files")})


def test_a_config_map_is_copied_as_the_kubelet_mounts_it(tmp_path: Path) -> None:
    version = tmp_path / "mounted" / "..2026_11_21"
    version.mkdir(parents=True)
    for name in ("train.py", "model.py"):
        (version / name).write_text(name)
        (tmp_path / "mounted" / name).symlink_to(Path("..data", name))
    (tmp_path / "mounted" / "..data").symlink_to(version.name)
    environment = {
        launch.SOURCE_FOLDER: str(tmp_path / "files"),
        launch.CONFIG_MAP_FOLDER: str(tmp_path / "mounted"),
    }
    assert prepare(resolved(configMap={"name": "code"}), environment) == "2 files from the ConfigMap"
    assert files(tmp_path / "files") == {"train.py": b"train.py", "model.py": b"model.py"}
    (tmp_path / "files" / "train.py").write_text("may be written")


@pytest.fixture
def mounted(tmp_path: Path) -> dict[str, str]:
    """A mounted ConfigMap with CODE as its archive."""
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "source.tgz").write_bytes(tgz(CODE))
    return {
        launch.SOURCE_FOLDER: str(tmp_path / "files"),
        launch.CONFIG_MAP_FOLDER: str(tmp_path / "mounted"),
    }


def test_an_archive_in_a_config_map_is_unpacked(tmp_path: Path, mounted: dict[str, str]) -> None:
    digest = hashlib.sha256(tgz(CODE)).hexdigest()
    said = prepare(resolved(configMap={"name": "code", "sha256": digest}), mounted)
    assert files(tmp_path / "files") == CODE
    assert said == f"3 files, {sum(map(len, CODE.values()))} bytes from source.tgz in ConfigMap code"


def test_another_archive_in_the_config_map_is_not_unpacked(tmp_path: Path, mounted: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match=r"^spec.source.configMap.sha256: source.tgz in ConfigMap code has"):
        prepare(resolved(configMap={"name": "code", "sha256": "0" * 64}), mounted)
    assert not (tmp_path / "files").exists()


def test_a_config_map_without_the_archive(tmp_path: Path, mounted: dict[str, str]) -> None:
    (tmp_path / "mounted" / "source.tgz").unlink()
    with pytest.raises(InvalidSpec, match=r"ConfigMap 'code' has no entry 'source.tgz'"):
        prepare(resolved(configMap={"name": "code", "sha256": "0" * 64}), mounted)


def test_a_missing_destination(tmp_path: Path) -> None:
    job = archived(tgz(CODE), str(tmp_path / "code.tgz"))
    with pytest.raises(InvalidSpec, match="MPTRAINING_SOURCE_FOLDER: not set"):
        prepare(job, {})


# As a process.
