from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_storage import gcs, gcs_clients, preconditions, storage
from mptraining_storage.preconditions import StoredObject
from tests.testbed.processes import free_ports

GLOBS = {
    "train-*": ["train-0", "train-1"],
    "train-?": ["train-0", "train-1"],
    "train-[1-9]": ["train-1"],
    "train-1": ["train-1"],
    "*/train-*": ["a/train-2", "b/train-3"],
    "[b]/train-*": ["b/train-3"],
    "a/deep/*": ["a/deep/x y#%.txt"],
    "*/*/*": ["a/deep/x y#%.txt"],
}


def _fill(folder: str) -> None:
    for name in ("train-0", "train-1", "validation-0", "a/train-2", "b/train-3", "a/deep/x y#%.txt"):
        storage.write(storage.join(folder, name), name.encode())


def _names(folder: str, objects: list[StoredObject]) -> list[str]:
    return [each.uri.removeprefix(folder + "/") for each in objects]


class Test_every_kind_of_storage:
    def test_reads_what_was_written(self, folder: str) -> None:
        uri = storage.join(folder, "new", "object.bin")
        storage.write(uri, b"0123456789")
        assert storage.read(uri) == b"0123456789"
        assert storage.read_range(uri, 3, 4) == b"3456"
        assert storage.read_range(uri, 8, 100) == b"89"
        assert storage.stat(uri).size == 10
        assert storage.stat(uri).uri == uri

    def test_writing_again_replaces_the_object_and_changes_its_version(self, folder: str) -> None:
        uri = storage.join(folder, "object")
        storage.write(uri, b"first")
        old = storage.stat(uri).version
        storage.write(uri, b"second")
        assert storage.read(uri) == b"second"
        assert storage.stat(uri).version != old
        with pytest.raises(InvalidData, match="was replaced"):
            storage.read_range(uri, 0, 1, version=old)

    def test_a_write_may_ask_for_the_version_that_it_replaces(self, folder: str) -> None:
        uri = storage.join(folder, "claim")
        first = storage.write(uri, b"first", replacing=None)
        assert storage.list_objects(folder) == [storage.stat(uri)] == storage.glob(storage.join(folder, "*")) == [first]
        with pytest.raises(preconditions.Conflict, match="exists already"):
            storage.write(uri, b"other", replacing=None)
        second = storage.write(uri, b"second", replacing=first.version)
        with pytest.raises(preconditions.Conflict, match="somebody else replaced it"):
            storage.write(uri, b"third", replacing=first.version)
        assert storage.read(uri) == b"second"
        storage.delete(uri)
        with pytest.raises(preconditions.Conflict):
            storage.write(uri, b"fourth", replacing=second.version)
        assert not storage.exists(uri)
        assert storage.list_objects(folder) == []

    def test_of_many_claims_at_once_one_wins(self, folder: str) -> None:
        def claim(number: int) -> bool:
            try:
                storage.write(storage.join(folder, "claim"), f"{number:02}".encode(), replacing=None)
            except preconditions.Conflict:
                return False
            return True

        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(claim, range(16)))
        assert sum(won) == 1
        assert storage.read(storage.join(folder, "claim")) == f"{won.index(True):02}".encode()

    def test_uploads_and_downloads_files(self, folder: str, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(3 << 20))
        uri = storage.join(folder, "copied", "object")
        storage.upload(source, uri)
        storage.download(uri, tmp_path / "new" / "target")
        assert (tmp_path / "new" / "target").read_bytes() == source.read_bytes()
        storage.move(source, storage.join(folder, "moved"))
        assert not source.exists()
        assert storage.stat(storage.join(folder, "moved")).size == 3 << 20

    def test_lists_every_depth_in_order(self, folder: str) -> None:
        _fill(folder)
        names = ["a/deep/x y#%.txt", "a/train-2", "b/train-3", "train-0", "train-1", "validation-0"]
        assert _names(folder, storage.list_objects(folder)) == names
        assert storage.list_objects(storage.join(folder, "nowhere")) == []

    def test_deletes_one_object_or_a_whole_folder_even_if_it_is_gone(self, folder: str) -> None:
        _fill(folder)
        storage.delete(storage.join(folder, "train-0"))
        storage.delete(storage.join(folder, "train-0"))
        assert not storage.exists(storage.join(folder, "train-0"))
        storage.delete_prefix(storage.join(folder, "a"))
        storage.delete_prefix(storage.join(folder, "a"))
        names = [each.name for each in storage.list_objects(folder)]
        assert names == ["train-3", "train-1", "validation-0"]

    def test_globs_in_any_element_of_the_path(self, folder: str) -> None:
        _fill(folder)
        for pattern, expected in GLOBS.items():
            assert _names(folder, storage.glob(storage.join(folder, pattern))) == expected, pattern

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [
            ("{train,validation}-*", "Braces are not expanded"),
            ("train@2", r"write .*train-\?{5}-of-00002"),
            ("trian-*", "nothing matches.*'train-0'"),
            ("a", r"a is a folder: name its files, such as .*/a/\*\.tfrecord"),
        ],
    )
    def test_a_pattern_without_a_match_gets_its_next_step(self, folder: str, pattern: str, message: str) -> None:
        _fill(folder)
        with pytest.raises(InvalidData, match=message):
            storage.glob(storage.join(folder, pattern))
        assert storage.glob_or_empty(storage.join(folder, pattern)) == []

    def test_a_missing_object_is_reported_in_one_line(self, folder: str) -> None:
        storage.write(storage.join(folder, "other"), b"")
        uri = storage.join(folder, "missing")
        assert not storage.exists(uri)
        for request in (storage.read, storage.stat, lambda uri: storage.read_range(uri, 0, 1)):
            with pytest.raises(InvalidData, match="no such") as caught:
                request(uri)
            assert str(caught.value).startswith(uri)
            assert "\n" not in str(caught.value)


class Test_local_files:
    def test_go_by_path_or_file_uri(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        storage.write(f"file://{tmp_path}/data/with%20space", b"x")
        assert storage.read(str(tmp_path / "data" / "with space")) == b"x"
        storage.write(str(tmp_path / "data" / "a#1"), b"x")
        (tmp_path / "data" / ".object.host-1-2.part").write_bytes(b"unfinished")
        assert [stored.name for stored in storage.glob(f"file://{tmp_path}/data/*")] == ["a#1", "with space"]
        assert [stored.name for stored in storage.glob(f"file://{tmp_path}/data/a#?")] == ["a#1"]
        monkeypatch.chdir(tmp_path)
        assert [stored.uri for stored in storage.glob("data/a*")] == ["data/a#1"]

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "object").mkdir()
        assert not storage.exists(str(tmp_path / "object"))
        with pytest.raises(InvalidData, match="this is a folder"):
            storage.read(str(tmp_path / "object"))
        with pytest.raises(InvalidData):
            storage.write(str(tmp_path / "object"), b"x")
        assert [path.name for path in tmp_path.iterdir()] == ["object"], "a failed write leaves nothing behind"
        with pytest.raises(InvalidData, match="no such file or folder"):
            storage.glob(str(tmp_path / "nowhere" / "*.tfrecord"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission_is_reported(self, tmp_path: Path) -> None:
        storage.write(str(tmp_path / "object"), b"")
        (tmp_path / "object").chmod(0)
        with pytest.raises(InvalidData, match="no permission"):
            storage.read(str(tmp_path / "object"))


class Test_buckets:
    def test_listings_know_the_checksum(self, bucket: str) -> None:
        written = storage.write(f"{bucket}/data/object", b"content", replacing=None)
        assert written.crc32c == google_crc32c.value(b"content")
        again = storage.write(f"{bucket}/data/object", b"content", replacing=None)
        assert again == written, "a request that is repeated because its response was lost is no conflict"
        storage.write(f"{bucket}/data/", b"")
        listed = storage.list_objects(f"{bucket}/data")
        assert storage.glob(f"{bucket}/data/*") == [written] == listed, "a folder's marker is no object"

    def test_a_large_file_goes_in_parts(self, bucket: str, tmp_path: Path) -> None:
        content = os.urandom((20 << 20) + 1)
        (tmp_path / "large").write_bytes(content)
        stored = storage.upload(tmp_path / "large", f"{bucket}/large", replacing=None)
        assert (stored.size, stored.crc32c) == (len(content), google_crc32c.value(content))
        assert storage.read_range(f"{bucket}/large", 16 << 20, 100, version=stored.version) == content[16 << 20 :][:100]
        (tmp_path / "large").write_bytes(content[1:])
        with pytest.raises(preconditions.Conflict):
            storage.upload(tmp_path / "large", f"{bucket}/large", replacing=None)

    @pytest.mark.parametrize("request_once", [storage.read, storage.stat, storage.exists, storage.list_objects])
    def test_it_is_the_bucket_that_is_missing(self, bucket: str, request_once: Callable[[str], object]) -> None:
        with pytest.raises(InvalidData, match="there is no bucket 'nowhere'"):
            request_once("gs://nowhere/object")
        with pytest.raises(InvalidData, match="there is no bucket 'nowhere'"):
            storage.write("gs://nowhere/object", b"")

    def test_an_exact_name_is_not_listed(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for key in ("a", "double//slash", "tab\t"):
            written = storage.write(f"{bucket}/{key}", b"x")
            with monkeypatch.context() as patched:
                patched.setattr(gcs, "_list", None)
                assert storage.glob(written.uri) == [written]

    def test_a_pattern_lists_what_begins_as_it_does(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(5):
            storage.write(f"{bucket}/data/other-{number}", b"")
        storage.write(f"{bucket}/data/train-0", b"")
        listed = []
        found = gcs._stored
        monkeypatch.setattr(gcs, "_stored", lambda blob: (listed.append(blob.name), found(blob))[1])
        assert [path.name for path in storage.glob(f"{bucket}/data/train-*")] == ["train-0"]
        assert listed == ["data/train-0"]

    def test_an_unreachable_endpoint_may_recover(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{free_ports(1)[0]}")
        monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
        for request in (storage.read, lambda uri: storage.read_range(uri, 0, 1), lambda uri: storage.write(uri, b"x")):
            with pytest.raises(StorageUnavailable, match="cannot be reached"):
                request("gs://bucket/key")
        assert not gcs_clients.endpoint().has_responded

    def test_proxies_are_not_used_for_an_emulator(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)[0]}")
        gcs_clients.endpoint_of.cache_clear()
        storage.write(f"{bucket}/object", b"content")
        assert storage.read_range(f"{bucket}/object", 3, 4) == b"tent"

    def test_no_credentials_names_the_ways_out(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        gcs_clients.endpoint_of.cache_clear()
        with pytest.raises(InvalidData, match="gcloud auth application-default login"):
            storage.read("gs://no-credentials-for-this/key")


def test_the_account_is_taken_from_the_credentials_when_the_response_lacks_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "job@project.iam.gserviceaccount.com", "private_key": pem}
    (tmp_path / "key.json").write_text(json.dumps(account | {"token_uri": "https://localhost:1/token"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    endpoint = gcs_clients.Endpoint(gcs_clients.settings())
    assert endpoint.principal() == "job@project.iam.gserviceaccount.com"
    anonymous = gcs_clients.Endpoint(gcs_clients.settings()._replace(anonymous=True))
    assert anonymous.principal().startswith("allUsers")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("gs://", "no bucket"),
        ("gs:///x", "no bucket"),
        ("gs://bucket", "no "),
        ("gs://buck*/x", "no bucket can have the name"),
        ("gs://b*t/x", "no objects named"),
        ("gs://bad_-/*.tfrecord", "no bucket can have the name"),
        ("gs://-bad/*.tfrecord", "no bucket can have the name"),
        ("gs://bucket/**.tfrecord", r"\*\* is not supported"),
        ("data/**/x", r"\*\* is not supported"),
        ("gs://bucket/data/", "this names a folder"),
        ("gs://bucket/data//*.tfrecord", "// and wildcards"),
    ],
)
def test_patterns_that_name_no_objects_and_wildcards_of_other_tools_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        storage.glob(pattern)
