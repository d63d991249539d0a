from __future__ import annotations

import http.server
import os
import socket
import threading
from pathlib import Path

import pytest

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records import storage

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

    def test_listing_and_asking_give_the_same_version(self, folder: str) -> None:
        uri = storage.join(folder, "object")
        storage.write(uri, b"content")
        assert storage.list_objects(folder) == [storage.stat(uri)] == storage.glob(storage.join(folder, "*"))

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
        names = [each.uri.removeprefix(folder + "/") for each in storage.list_objects(folder)]
        assert names == ["a/deep/x y#%.txt", "a/train-2", "b/train-3", "train-0", "train-1", "validation-0"]
        assert storage.list_objects(storage.join(folder, "nowhere")) == []

    def test_deletes_one_object_or_a_whole_folder_and_never_minds_what_is_gone(self, folder: str) -> None:
        _fill(folder)
        storage.delete(storage.join(folder, "train-0"))
        storage.delete(storage.join(folder, "train-0"))
        assert not storage.exists(storage.join(folder, "train-0"))
        storage.delete_prefix(storage.join(folder, "a"))
        storage.delete_prefix(storage.join(folder, "a"))
        names = [each.name for each in storage.list_objects(folder)]
        assert names == ["train-3", "train-1", "validation-0"]

    @pytest.mark.parametrize("pattern", GLOBS)
    def test_globs_in_any_element_of_the_path(self, folder: str, pattern: str) -> None:
        _fill(folder)
        found = [each.uri.removeprefix(folder + "/") for each in storage.glob(storage.join(folder, pattern))]
        assert found == GLOBS[pattern]

    def test_a_glob_without_a_match_names_the_nearest_objects(self, folder: str) -> None:
        _fill(folder)
        with pytest.raises(InvalidData) as caught:
            storage.glob(storage.join(folder, "trian-*"))
        assert "nothing matches" in str(caught.value)
        assert "'train-0'" in str(caught.value)
        assert storage.matching(storage.join(folder, "trian-*")) == []

    def test_a_missing_object_is_said_in_one_line(self, folder: str) -> None:
        storage.write(storage.join(folder, "other"), b"")
        uri = storage.join(folder, "missing")
        assert not storage.exists(uri)
        for ask in (storage.read, storage.stat, lambda uri: storage.read_range(uri, 0, 1)):
            with pytest.raises(InvalidData, match="no such") as caught:
                ask(uri)
            assert str(caught.value).startswith(uri)
            assert "\n" not in str(caught.value)


class Test_local_files:
    def test_go_by_path_or_file_uri(self, tmp_path: Path) -> None:
        storage.write(f"file://{tmp_path}/with%20space", b"x")
        assert storage.read(str(tmp_path / "with space")) == b"x"
        assert [each.name for each in storage.glob(f"file://{tmp_path}/*")] == ["with space"]

    def test_relative_patterns(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        storage.write(str(tmp_path / "data" / "a.tfrecord"), b"")
        monkeypatch.chdir(tmp_path)
        assert [each.uri for each in storage.glob("data/*")] == ["data/a.tfrecord"]

    def test_unfinished_files_are_not_listed(self, tmp_path: Path) -> None:
        (tmp_path / ".object.host-1-2.part").write_bytes(b"half")
        assert storage.list_objects(str(tmp_path)) == []

    def test_a_failed_write_leaves_nothing_behind(self, tmp_path: Path) -> None:
        (tmp_path / "object").mkdir()
        with pytest.raises(InvalidData):
            storage.write(str(tmp_path / "object"), b"x")
        assert [path.name for path in tmp_path.iterdir()] == ["object"]

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidData, match="no such file or folder"):
            storage.glob(str(tmp_path / "nowhere" / "*.tfrecord"))

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        assert not storage.exists(str(tmp_path))
        with pytest.raises(InvalidData, match="this is a folder"):
            storage.read(str(tmp_path))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission_is_said(self, tmp_path: Path) -> None:
        storage.write(str(tmp_path / "object"), b"")
        (tmp_path / "object").chmod(0)
        with pytest.raises(InvalidData, match="no permission"):
            storage.read(str(tmp_path / "object"))


class Test_buckets:
    def test_a_missing_bucket_is_named(self, bucket: str) -> None:
        with pytest.raises(InvalidData, match="there is no bucket 'nowhere'"):
            storage.glob("gs://nowhere/train-*")

    def test_an_unknown_scheme_is_refused(self) -> None:
        with pytest.raises(InvalidData, match="unknown kind of storage 's3'"):
            storage.read("s3://bucket/key")

    def test_a_pattern_needs_a_bucket_and_a_path(self) -> None:
        for pattern in ("gs://", "gs:///x", "gs://bucket", "gs://buck*/x"):
            with pytest.raises(InvalidData):
                storage.glob(pattern)

    def test_an_unreachable_endpoint_may_heal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{port}")
        monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            storage.read("gs://bucket/key")
        with pytest.raises(StorageUnavailable):
            storage.write("gs://bucket/key", b"x")

    def test_no_credentials_names_the_ways_out(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        with pytest.raises(InvalidData, match="gcloud auth application-default login"):
            storage.read("gs://no-credentials-for-this/key")


@pytest.mark.parametrize(
    ("status", "problem", "said"),
    [
        (403, InvalidData, "no permission"),
        (401, InvalidData, "no permission"),
        (400, InvalidData, "refused the request"),
        (500, StorageUnavailable, "HTTP 500"),
        (503, StorageUnavailable, "HTTP 503"),
        (429, StorageUnavailable, "HTTP 429"),
    ],
)
def test_what_a_bucket_answers_becomes_one_line(
    status: int, problem: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _answering(status) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv("MPTRAINING_STORAGE_RETRY_SECONDS", "0.2")
        for ask in (storage.read, storage.list_objects, lambda uri: storage.write(uri, b"x")):
            with pytest.raises(problem, match=said) as caught:
                ask("gs://bucket/key")
            assert "\n" not in str(caught.value)


class _answering:
    """A server that gives every request the same status."""

    def __init__(self, status: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = do_PUT = do_POST = _answer

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
