"""Parallel uploads of several files; a single stream to a bucket is far slower than the network."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mptraining_storage import preconditions, storage
from mptraining_storage.preconditions import StoredObject

THREADS = 8


def upload(
    files: Mapping[Path, str], *, replacing: Mapping[str, str] | None = None, keep_source: bool = True
) -> list[StoredObject]:
    """Copy local files to their URIs; returns the stored objects in the order of `files`.

    With `replacing`, versions by URI, only those versions may be replaced, and a URI without a version must not exist.
    Without `keep_source`, a file with a local URI is renamed. Raises the first problem after all running uploads have
    ended; later problems are dropped.
    """
    with ThreadPoolExecutor(min(THREADS, max(1, len(files))), thread_name_prefix="upload") as pool:

        def send(path: Path, uri: str) -> StoredObject:
            version = preconditions.ANY if replacing is None else replacing.get(uri)
            send_one = storage.upload if keep_source or storage.is_remote(uri) else storage.move
            return send_one(path, uri, replacing=version)

        uploads = [pool.submit(send, path, uri) for path, uri in files.items()]
        try:
            return [upload.result() for upload in uploads]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
