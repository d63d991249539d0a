"""Many small objects in one bucket: `python -m hack.bench.records.many_objects --objects 100000`.

Measures the first index of a job (which reads every object and writes its sidecar), the next start (which reads the
sidecars) and the highest resident memory of each above that after imports. The bucket, of `bucket_in_memory`, is behind
the proxy of the testbed, over TLS, with `--latency` seconds a request. One JSON line for each measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.bench.figures import progress
from hack.bench.records.data import BUCKET
from hack.bench.records.measure import ROOT
from tests.testbed.gcs.faults import Shape
from tests.testbed.gcs.proxy import StorageProxy
from tests.testbed.processes import Server, free_ports

# Records of each object, and the bytes of a record.
_RECORDS, _BYTES = 4, 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.records.many_objects", description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds of a request")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_index(arguments.child)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-objects-") as name:
        root = Path(name)
        with (
            _bucket(root, arguments.objects) as address,
            StorageProxy(address, Shape(latency=arguments.latency, stream_rate=20e6), folder=root / "proxy") as proxy,
        ):
            for what in ("first index", "next start"):
                proxy.reset()
                measured = _in_child(f"gs://{BUCKET}/many/*.tfrecord", proxy.environment())
                if measured["records"] != arguments.objects * _RECORDS:
                    raise RuntimeError(f"{measured['records']} records of {arguments.objects * _RECORDS}")
                line = {"name": f"records.objects.{what.replace(' ', '_')}", "objects": arguments.objects, **measured}
                print(
                    json.dumps(line | {"latency": arguments.latency, "gets": proxy.counters().media_requests}),
                    flush=True,
                )


@contextmanager
def _bucket(root: Path, objects: int) -> Iterator[str]:
    """Yield the address of a server with that many objects of a few records."""
    from mptraining_records.tfrecord import framing

    content = root / "content"
    content.write_bytes(b"".join(framing.encode(bytes([number]) * _BYTES) for number in range(_RECORDS)))
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "hack.bench.records.bucket_in_memory",
        str(port),
        BUCKET,
        str(objects),
        str(content),
    ]
    with Server(command, log=root / "bucket.log") as server:
        address = f"http://127.0.0.1:{port}"
        listing = f"{address}/storage/v1/b/{BUCKET}/o?maxResults=1"
        server.wait_until(lambda: bool(urllib.request.urlopen(listing, timeout=30).read()), seconds=180)
        progress(f"{objects} objects of {content.stat().st_size} bytes")
        yield address


def _in_child(pattern: str, environment: dict[str, str]) -> dict[str, float]:
    """Index in a separate process. Raises RuntimeError with its output when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "hack.bench.records.many_objects", "--child", pattern],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        progress(done.stderr[-4000:])
        raise RuntimeError(f"the index ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def _index(pattern: str) -> dict[str, float]:
    # Late imports: a trainer has loaded them all with TensorFlow.
    import google.cloud.storage  # noqa: F401

    import mptraining_records.storage.http_session  # noqa: F401
    from mptraining_records.index import dataset_index

    before, cpu, began = _peak(), time.process_time(), time.monotonic()
    dataset = dataset_index.build([pattern])
    return {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": round((_peak() - before) / 1e6, 1),
        "records": dataset.count,
    }


def _peak() -> int:
    """Return the highest resident memory in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
