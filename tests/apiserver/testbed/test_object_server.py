"""The object server of tests: buckets from folders, in memory or on disk."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.testbed.gcs.object_server import ObjectServer


def read(server: ObjectServer, name: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server.address}/{name}") as answer:
        content: bytes = answer.read()
    return content


@pytest.mark.usefixtures("object_server")  # without the program the test is skipped
class TestObjectServer:
    def test_folders_are_buckets_and_objects_are_added(self, tmp_path: Path) -> None:
        (tmp_path / "data" / "bucket" / "deep").mkdir(parents=True)
        (tmp_path / "data" / "bucket" / "deep" / "x").write_bytes(b"preloaded")
        with ObjectServer(tmp_path / "data") as server:
            assert read(server, "bucket/deep/x") == b"preloaded"
            assert server.create_bucket("another") == "gs://another"
            server.upload("another", "deep/y z", b"uploaded")
            assert read(server, "another/deep/y%20z") == b"uploaded"

    def test_what_is_kept_on_disk_is_there_again(self, tmp_path: Path) -> None:
        with ObjectServer(on_disk=tmp_path / "kept") as server:
            server.create_bucket("bucket")
            server.upload("bucket", "x", b"kept")
        with ObjectServer(on_disk=tmp_path / "kept") as server:
            assert read(server, "bucket/x") == b"kept"
