"""`make bench-records` still produces every kind of figure, from a few MB; values depend on the machine."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records import mixing
from bench.records.data import DAMAGED, Size, digest_of, make
from mptraining_records.index import dataset_index
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.reading.order import Order, training_order
from mptraining_records.reading.reader import RecordReader
from tests.left_out import leave_out
from tests.testbed import missing
from tests.testbed.gcs.object_server import OBJECT_SERVER

ROOT = Path(__file__).resolve().parents[2]
# The other groups make the same kinds, with more processes that import TensorFlow.
GROUPS = ("one-object", "resume", "faults", "bad-records")
NAMES = {
    "records.one_object.mb_per_second",
    "records.one_object.first_batch_seconds",
    "records.one_object.no_index.mb_per_second",
    "records.one_object.no_index.first_batch_seconds",
    "records.resume.bytes_read_again",
    "records.resume.identical_batches",
    "records.resume.state_bytes",
    "records.faults.mb_per_second",
    "records.faults.lost_or_doubled",
    "records.damaged_1.delivered",
    "records.damaged_1.named",
    "records.damaged_20.delivered",
    "records.damaged_20.named",
}


@pytest.mark.training
@pytest.mark.soak
def test_every_kind_of_figure_is_produced() -> None:
    if absent := missing((OBJECT_SERVER,)):
        leave_out(absent)
    done = subprocess.run(
        [sys.executable, "-m", "bench.records", "--quick", "--only", *GROUPS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]

    assert {figure["name"] for figure in figures} == NAMES
    for figure in figures:
        assert figure["rounds"] == 1
        assert math.isfinite(figure["ratio"])
        assert figure["goal"][:2] in (">=", "<=")
        low, high = figure["spread"]
        assert 0 <= low <= figure["value"] <= high
    assert {"plain", "raw-ranges", "gcsfs", "transfer-manager", "tf.data", "clean"} <= {
        figure["against"] for figure in figures
    }
    right = {figure["name"]: figure["met"] for figure in figures}
    assert right["records.faults.lost_or_doubled"]
    assert right["records.resume.identical_batches"]
    assert right["records.damaged_20.delivered"]


def test_the_cost_of_an_order_is_that_of_its_ranges() -> None:
    whole = Order(mixing.COUNT, 7, buffer_size=1 << 16, block_size=1000)
    amplification, length = mixing.cost(whole, 4_000)
    assert amplification == pytest.approx(1, abs=0.01)
    assert length > 400_000
    amplification, length = mixing.cost(training_order(mixing.COUNT, 4_000, seed=7, shuffle="Windowed"), 4_000)
    assert 1 <= amplification < 1.1
    assert 48_000 < length < 80_000


def test_the_same_records_lie_in_one_object_and_in_many(tmp_path: Path) -> None:
    data = make(tmp_path, Size(large=1, shards=3, small=1, many=1, record=10_000))
    large, shards = data["large"], data["shards"]
    assert (large.files, shards.files) == (1, 3)
    assert (large.count, large.size, large.digest) == (shards.count, shards.size, shards.digest)
    assert shards.framed == sum(path.stat().st_size for path in shards.folder.iterdir())


@pytest.mark.parametrize("count", [1, 20])
def test_so_many_records_are_damaged(tmp_path: Path, count: int) -> None:
    data = make(tmp_path, Size(large=1, shards=1, small=1, many=1))[f"damaged-{count}"]
    dataset = dataset_index.build(data.patterns("disk"))
    assert dataset.count == DAMAGED
    with RecordReader(dataset, bad_records=BadRecords("Skip", count)) as reader:
        good = [record for record in reader.read(range(DAMAGED)) if record is not None]
    assert len(good) == data.count == DAMAGED - count
    assert digest_of(good) == data.digest
