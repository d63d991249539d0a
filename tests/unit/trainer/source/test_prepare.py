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
def test_an_archive_replaces_what_was_unpacked_before(tmp_path: Path, bucket: str, pack: Any, name: str) -> None:
    environment = {launch.SOURCE_FOLDER: str(tmp_path / "files")}
    prepare(archived(tgz({"old.py": b""}), str(tmp_path / "old.tgz")), environment)
    for uri in (str(tmp_path / name), f"{bucket}/code/{name}"):
        summary = prepare(archived(pack(CODE), uri), environment)
        assert files(tmp_path / "files") == CODE
        assert summary == f"3 files, {sum(map(len, CODE.values()))} bytes from {uri}"


def test_another_archive_than_the_job_names_is_not_unpacked(tmp_path: Path) -> None:
    uri, archive = str(tmp_path / "code.tgz"), tgz(CODE)
    storage.write(uri, archive)
    digest = hashlib.sha256(archive).hexdigest()
    with pytest.raises(InvalidSpec, match=f"^spec.source.archive.sha256: {uri} has {digest}; expected {'0' * 64}"):
        prepare(resolved(archive={"uri": uri, "sha256": "0" * 64}), {launch.SOURCE_FOLDER: str(tmp_path / "files")})
    assert not (tmp_path / "files").exists()


def test_an_archive_that_is_absent_or_has_data_in_it_is_not_fetched(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {launch.SOURCE_FOLDER: str(tmp_path / "files")}
    for uri in (f"{bucket}/code.tgz", str(tmp_path / "code.tgz")):
        with pytest.raises(InvalidData, match="no such file or object"):
            prepare(resolved(archive={"uri": uri, "sha256": "0" * 64}), environment)
    monkeypatch.setattr(source_prepare, "MOST_ARCHIVE_BYTES", 100)
    job = archived(tgz(CODE), str(tmp_path / "code.tgz"))
    with pytest.raises(InvalidData, match=r"bytes; expected a source archive of at most"):
        prepare(job, environment)
    with pytest.raises(InvalidSpec, match="MPTRAINING_SOURCE_FOLDER: not set"):
        prepare(job, {})


def test_a_config_map_is_copied_as_the_kubelet_mounts_it(tmp_path: Path) -> None:
    version = tmp_path / "mounted" / "..2026_11_21"
    version.mkdir(parents=True)
    for name in ("train.py", "model.py"):
        (version / name).write_text(name)
        (tmp_path / "mounted" / name).symlink_to(Path("..data", name))
    (tmp_path / "mounted" / "..data").symlink_to(version.name)
    environment = {launch.SOURCE_FOLDER: str(tmp_path / "files"), launch.CONFIG_MAP_FOLDER: str(tmp_path / "mounted")}
    assert prepare(resolved(configMap={"name": "code"}), environment) == "2 files from the ConfigMap"
    assert files(tmp_path / "files") == {"train.py": b"train.py", "model.py": b"model.py"}
    (tmp_path / "files" / "train.py").write_text("may be written")


def test_an_archive_in_a_config_map_must_be_the_one_that_the_job_names(tmp_path: Path) -> None:
    environment = {launch.SOURCE_FOLDER: str(tmp_path / "files"), launch.CONFIG_MAP_FOLDER: str(tmp_path / "mounted")}
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "source.tgz").write_bytes(tgz(CODE))
    other = resolved(configMap={"name": "code", "sha256": "0" * 64})
    with pytest.raises(InvalidSpec, match=r"^spec.source.configMap.sha256: source.tgz in ConfigMap code has"):
        prepare(other, environment)
    assert not (tmp_path / "files").exists()
    digest = hashlib.sha256(tgz(CODE)).hexdigest()
    summary = prepare(resolved(configMap={"name": "code", "sha256": digest}), environment)
    assert files(tmp_path / "files") == CODE
    assert summary == f"3 files, {sum(map(len, CODE.values()))} bytes from source.tgz in ConfigMap code"
    (tmp_path / "mounted" / "source.tgz").unlink()
    with pytest.raises(InvalidSpec, match=r"ConfigMap 'code' has no entry 'source.tgz'"):
        prepare(other, environment)
