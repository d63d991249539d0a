"""A bucket of very many small objects: lists, reads and uploads of Google Cloud Storage's JSON API, in memory.

fake-gcs-server takes a time that grows with the square of the number of objects. `python -m
bench.records.bucket_in_memory PORT BUCKET OBJECTS FILE` serves OBJECTS copies of FILE as `many/part-<number>.tfrecord`.
"""

from __future__ import annotations

import base64
import bisect
import json
import sys
from pathlib import Path

import google_crc32c
from aiohttp import web

_PAGE = 1000


class Bucket:
    """Objects with their generations. Handlers run in one thread."""

    def __init__(self, name: str, objects: int, content: bytes) -> None:
        self.name = name
        self._objects = {f"many/part-{number:06}.tfrecord": (content, 1) for number in range(objects)}
        self._names = sorted(self._objects)
        self._generation = 1

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"/storage/v1/b/{self.name}/o", self.list),
            web.get(f"/storage/v1/b/{self.name}/o/{{key:.+}}", self.read),
            web.get(f"/download/storage/v1/b/{self.name}/o/{{key:.+}}", self.read),
            web.post(f"/upload/storage/v1/b/{self.name}/o", self.upload),
        ]

    async def list(self, request: web.Request) -> web.Response:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        start = request.query.get("pageToken") or prefix
        most = int(request.query.get("maxResults", _PAGE))
        items: list[dict[str, str]] = []
        prefixes: set[str] = set()
        at = bisect.bisect_left(self._names, start)
        while at < len(self._names) and (name := self._names[at]).startswith(prefix) and len(items) < most:
            folder, slash, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if slash:
                prefixes.add(f"{prefix}{folder}{slash}")
            else:
                items.append(self._about(name))
            at += 1
        more = at < len(self._names) and self._names[at].startswith(prefix)
        token = {"nextPageToken": self._names[at]} if more else {}
        return web.json_response({"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes), **token})

    async def read(self, request: web.Request) -> web.Response:
        name = request.match_info["key"]
        if name not in self._objects:
            return web.Response(status=404, text=f"No such object: {self.name}/{name}")
        if request.query.get("alt") != "media":
            return web.json_response(self._about(name))
        content, generation = self._objects[name]
        headers = {"X-Goog-Generation": str(generation), "X-Goog-Stored-Content-Length": str(len(content))}
        part = request.http_range
        if part.start is None and part.stop is None:
            return web.Response(body=content, headers={**headers, "X-Goog-Hash": f"crc32c={_crc(content)}"})
        first, last, _ = part.indices(len(content))
        headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(content)}"
        return web.Response(status=206, body=content[first:last], headers=headers)

    async def upload(self, request: web.Request) -> web.Response:
        parts = [await part.read() async for part in await request.multipart()]  # type: ignore[union-attr]
        about, content = json.loads(parts[0]), bytes(parts[1])
        name, wanted = about["name"], request.query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != self._objects.get(name, (b"", 0))[1]:
            return web.Response(status=412)
        self._generation += 1
        if name not in self._objects:
            bisect.insort(self._names, name)
        self._objects[name] = (content, self._generation)
        return web.json_response(self._about(name))

    def _about(self, name: str) -> dict[str, str]:
        content, generation = self._objects[name]
        size, made = str(len(content)), str(generation)
        return {"name": name, "bucket": self.name, "size": size, "generation": made, "crc32c": _crc(content)}


def _crc(content: bytes) -> str:
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def main() -> None:
    port, bucket, objects, file = sys.argv[1:]
    served = Bucket(bucket, int(objects), Path(file).read_bytes())
    app = web.Application(client_max_size=64 << 20)
    app.add_routes(served.routes())
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, access_log=None)


if __name__ == "__main__":
    main()
