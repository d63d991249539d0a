"""The verb `source`: its downloads, checks and refusals; archives of every kind that contain paths to outside."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api import launch
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_storage import storage
from mptraining_trainer.job import archive as module
from mptraining_trainer.job import prepare as source_prepare
from mptraining_trainer.job.archive import unpack
from mptraining_trainer.job.prepare import prepare
from tests.testbed.source_archives import CODE, archived, files, resolved, tgz

Member = tuple[str, Any]


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> dict[str, Any]:
    return {"type": kind, "linkname": target}


def hard(target: str) -> dict[str, Any]:
    return link(target, tarfile.LNKTYPE)


def tar(path: Path, *members: Member) -> Path:
    """Write a .tgz: each member a name and bytes, or the fields of its TarInfo."""
    with tarfile.open(path, "w:gz") as archive:
        for name, what in members:
            member = tarfile.TarInfo(name)
            content = what if isinstance(what, bytes) else b""
            member.size = len(content)
            for field, value in ({} if isinstance(what, bytes) else what).items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(content))
    return path


def zipped(path: Path, name: str, content: bytes = b"x", mode: int = 0o644) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, content)
    return path


def outside(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.name not in ("a", "folder"))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("/etc/passwd", b"x")], "leads out"),
        ([("../escaped", b"x")], "leads out"),
        ([("a/../../escaped", b"x")], "leads out"),
        ([("out", link("/etc"))], "which leads out"),
        ([("out", link("../x"))], "which leads out"),
        ([("a/out", link("../../x"))], "which leads out"),
        ([("down", link("a/b/.."))], "which leads out"),
        ([("inside", link("folder")), ("inside/file", b"x")], "behind a link"),
        ([("inside", link("file")), ("inside", b"x")], "behind a link"),
        # Each alone points inside; both together point outside.
        ([("d/e/up", link("../..")), ("out", link("d/e/up/.."))], "which leads out"),
        # A link at the root that was made as a hard link to one further down.
        ([("d/e/link", link("../../x")), ("moved", hard("d/e/link"))], "no file before it"),
        ([("secret", hard("/etc/passwd"))], "leads out"),
        ([("secret", hard("../x"))], "leads out"),
        ([("secret", hard("not/there"))], "no file before it"),
        ([("self", b"x"), ("self", hard("self"))], "no file before it"),
        ([("file", b"x"), ("file/below", b"x")], "cannot be unpacked"),
        ([("a" * 300, b"x")], "cannot be unpacked: File name too long"),
        ([("pipe", {"type": tarfile.FIFOTYPE})], "a device or a pipe"),
        ([("disk", {"type": tarfile.BLKTYPE, "devmajor": 8})], "a device or a pipe"),
        ([("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})], "a device or a pipe"),
    ],
)
def test_no_path_leads_out_of_a_tar(tmp_path: Path, members: list[Member], why: str) -> None:
    with pytest.raises(InvalidData, match=why) as caught:
        unpack(tar(tmp_path / "a", *members), tmp_path / "folder", "gs://bucket/a.tgz")
    assert str(caught.value).startswith("gs://bucket/a.tgz: ")
    assert outside(tmp_path) == []


def test_no_path_leads_out_of_a_zip(tmp_path: Path) -> None:
    for name, mode, why in (
        ("/etc/passwd", 0o644, "leads out"),
        ("../escaped", 0o644, "leads out"),
        ("link", stat.S_IFLNK | 0o777, "is a link"),
    ):
        with pytest.raises(InvalidData, match=why):
            unpack(zipped(tmp_path / "a", name, b"/etc", mode), tmp_path / "folder", "a.zip")
    assert outside(tmp_path) == []


_NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", ""]), min_size=1, max_size=4).map("/".join)
_MEMBERS = st.lists(
    st.tuples(_NAMES, st.one_of(st.just(b"x"), st.builds(link, _NAMES), st.builds(hard, _NAMES))), max_size=6
)


@given(_MEMBERS)
def test_no_archive_changes_anything_outside(tmp_path_factory: pytest.TempPathFactory, members: list[Member]) -> None:
    base = tmp_path_factory.mktemp("any")
    home = base / "d" / "e"
    home.mkdir(parents=True)
    with contextlib.suppress(InvalidData):
        unpack(tar(base / "a.tgz", *members), home / "folder", "any")
    outer = sorted(str(path.relative_to(base)) for path in base.rglob("*") if home / "folder" not in path.parents)
    assert outer == ["a.tgz", "d", "d/e", "d/e/folder"]
    for each in (home / "folder").rglob("*"):
        if not _loops(each):
            assert Path(os.path.realpath(each)).is_relative_to(home / "folder")


def _loops(path: Path) -> bool:
    """Report whether it is a link to itself; realpath's result for those is not defined."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def test_links_that_stay_inside_are_kept_and_rights_of_others_are_not(tmp_path: Path) -> None:
    members = [("lib/model.py", b"code"), ("again.py", hard("lib/model.py")), ("pkg/model.py", link("../lib/model.py"))]
    found = unpack(tar(tmp_path / "a", *members, ("run.sh", {"mode": 0o6777, "uid": 0})), tmp_path / "folder", "a.tgz")
    for name in ("again.py", "pkg/model.py"):
        assert (tmp_path / "folder" / name).read_bytes() == b"code"
    assert found.entries == 4
    mode = (tmp_path / "folder" / "run.sh").stat().st_mode
    assert stat.S_IMODE(mode) & 0o6022 == 0
    assert mode & stat.S_IXUSR


def test_a_zip_bomb_is_detected_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    small = tar(tmp_path / "a", ("one", bytes(600)), ("two", bytes(600)))
    with pytest.raises(InvalidData, match="'two' in the archive goes beyond"):
        unpack(small, tmp_path / "folder", "a.tgz")
    assert not (tmp_path / "folder" / "two").exists()
    with pytest.raises(InvalidData, match="goes beyond"):
        unpack(zipped(tmp_path / "a", "one", bytes(1001)), tmp_path / "folder", "a.zip")
    # A million little files.
    monkeypatch.setattr(module, "MOST_ENTRIES", 2)
    with pytest.raises(InvalidData, match="'c' in the archive is one entry more than 2"):
        unpack(tar(tmp_path / "a", ("a", b""), ("b", b""), ("c", b"")), tmp_path / "folder", "a.tgz")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x1f\x8bnonsense", id="no-gzip"),
        pytest.param(gzip.compress(b"no tar" * 500), id="no-tar"),
        pytest.param(b"PK\x03\x04 no zip", id="no-zip"),
        pytest.param(0.3, id="cut-in-the-first-file"),
        pytest.param(0.7, id="cut-in-the-second-file"),
    ],
)
def test_a_damaged_archive(tmp_path: Path, content: bytes | float) -> None:
    if isinstance(content, float):
        whole = tar(tmp_path / "a", ("one", os.urandom(5000)), ("two", os.urandom(5000))).read_bytes()
        content = whole[: int(len(whole) * content)]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InvalidData, match="damaged archive"):
        unpack(tmp_path / "a", tmp_path / "folder", "a.tgz")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        pytest.param(6, 99, "damaged archive: zip file version 9.9", id="of-a-later-version"),
        pytest.param(10, 77, "'a' in the archive cannot be read: .*compression", id="with-an-unknown-compression"),
        pytest.param(46, 0, "'' in the archive has no name", id="a-file-without-a-name"),
    ],
)
def test_a_zip_that_python_cannot_read(tmp_path: Path, place: int, value: int, why: str) -> None:
    """Found by fuzzing: zipfile raises NotImplementedError and IndexError."""
    path = zipped(tmp_path / "a", "a")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + place] = value
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=f"^a.zip: .*{why}"):
        unpack(path, tmp_path / "folder", "a.zip")
    (tmp_path / "a").write_bytes(b"import keras\n")
    with pytest.raises(InvalidSpec, match=r"spec\.source\.archive\.uri: train\.py is no archive"):
        unpack(tmp_path / "a", tmp_path / "folder", "train.py")


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(("pack", "name"), [(tgz, "code.tgz"), (tgz, "code.tar.gz"), (zip_of, "code.zip")])
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
