"""Several files uploaded at a time: one stream to a bucket is far from what the network carries."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mptraining_records.storage import preconditions, storage
from mptraining_records.storage.storage import StoredObject

THREADS = 8


def upload(
    files: Mapping[Path, str], *, replacing: Mapping[str, str] | None = None, keep: bool = True
) -> list[StoredObject]:
    """Copies local files to their URIs; what became of them, in the order of `files`.

    With `replacing`, the versions by URI that are there now: only those may be replaced, and where a URI has none,
    nothing may be there. Without `keep` a file on the disk that it goes to is renamed. Raises the first problem once no
    upload is under way any more; those after it are left out.
    """
    with ThreadPoolExecutor(min(THREADS, max(1, len(files))), thread_name_prefix="upload") as pool:

        def send(path: Path, uri: str) -> StoredObject:
            may = preconditions.ANY if replacing is None else replacing.get(uri)
            send_one = storage.upload if keep or storage.is_remote(uri) else storage.move
            return send_one(path, uri, replacing=may)

        under_way = [pool.submit(send, path, uri) for path, uri in files.items()]
        try:
            return [each.result() for each in under_way]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
