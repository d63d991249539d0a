"""`mptj records`: a CSV becomes records, damage is found."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mptraining.cli import records
from mptraining.cli.main import app
from mptraining.cli.records import parse_size
from mptraining_api.problems import InvalidSpec
from mptraining_records.tfrecord import framing
from mptraining_storage import gcs_clients, storage
from tests.testbed.mptj import mptj

Environment = Callable[..., dict[str, str]]


def test_convert_then_verify_then_damage(tmp_path: Path, environment: Environment) -> None:
    (tmp_path / "flowers.csv").write_text("width,label\n" + "".join(f"{at}.5,{at % 3}\n" for at in range(50)))
    run = functools.partial(mptj, "records", environment=environment(), folder=tmp_path)
    done = run("convert", "flowers.csv", "out", "--label", "label")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert done.stdout.startswith("train: 50 records in 1 file, ")
    assert done.stdout.endswith("next: data.train: [out/train-*.tfrecord] of a job file\n")

    sound = run("verify", "out/train-*.tfrecord")
    assert sound.returncode == 0
    assert sound.stdout.startswith("50 records in 1 file, ")
    assert sound.stdout.endswith(": all sound\n")

    shard = next((tmp_path / "out").glob("*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    damaged = run("verify", str(shard))
    assert damaged.returncode == 2
    assert damaged.stdout.splitlines()[0].startswith(f"{shard}: record 0 at byte 0: ")
    assert damaged.stdout.splitlines()[-1].endswith(": 1 damaged")

    again = run("convert", "flowers.csv", "out")
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].endswith("exists already. Choose another folder or --overwrite")


def test_the_first_records_and_the_classes_are_shown(tmp_path: Path) -> None:
    rows = "".join(f"{at}.5,{'rare' if at % 8 == 0 else 'common'}\n" for at in range(80))
    (tmp_path / "flowers.csv").write_text("width,label\n" + rows)
    convert = ["records", "convert", f"{tmp_path}/flowers.csv", f"{tmp_path}/out", "--validation-fraction", "0.2"]
    done = CliRunner().invoke(app, [*convert, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "note: width: float64 is stored as float32",
        "note: validation: 16 of 80 rows, the same share of each 'label'",
        "80 rows; label: label (common, rare); the first:",
        "  row 0: label 1 (rare), width 0.5",
        "  row 1: label 0 (common), width 1.5",
        "  row 2: label 0 (common), width 2.5",
    ]
    assert done.stdout == "nothing is written, for --dry-run\n"
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, convert)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("train: 64 records in 1 file, ")
    assert lines[0].endswith(", permuted by seed 0")
    assert lines[1] == "  classes: common 56, rare 8"
    weights = 'training.classWeight: {"0": 0.5714, "1": 4}'
    assert lines[2] == f"  classes of unequal size; a job may weight them: {weights}"


def test_sorted_records_are_reported(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,label\n" + "".join(f"{at},{at // 50}\n" for at in range(100)))
    done = CliRunner().invoke(app, ["records", "convert", f"{tmp_path}/rows.csv", f"{tmp_path}/out", "--keep-order"])
    assert "warning: train looks sorted by 'label'; without --keep-order it is permuted" in done.stderr
    assert done.stdout.splitlines()[0].endswith(", in the source's order")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "arguments: a; expected SOURCE and DEST"),
        (["a", "b", "--pairs", "x=1", "y=2"], "arguments: a b; expected DEST alone, since --pairs names the sources"),
        (["b", "--pairs", "x", "y=2"], "--pairs: x y=2; expected two names and folders"),
        (["b", "--pairs", "x=1", "x=2"], "--pairs: x=1 x=2; expected two names and folders"),
    ],
)
def test_places_and_pairs(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["records", "convert", *words])
    assert said in str(done.exception)


def test_image_size() -> None:
    assert parse_size(None) is None
    assert parse_size("224x192") == (224, 192)
    with pytest.raises(InvalidSpec, match=r"--image-size: '224'; expected HEIGHTxWIDTH"):
        parse_size("224")


def test_index_of_a_bucket(tmp_path: Path, environment: Environment, bucket: str) -> None:
    frames = [framing.encode(b"record %d" % number) for number in range(20)]
    storage.write(f"{bucket}/data/a.tfrecord", b"".join(frames))
    frames[3] = frames[3][:8] + b"\0" + frames[3][9:]
    storage.write(f"{bucket}/data/b.tfrecord", b"".join(frames))

    def index(*options: str) -> subprocess.CompletedProcess[str]:
        pattern = f"{bucket}/data/*"
        return mptj("records", "index", pattern, *options, environment=environment(), folder=tmp_path)

    first = index()
    assert first.returncode == 2
    assert first.stderr == ""
    assert first.stdout.splitlines() == [
        f"{bucket}/data/b.tfrecord: record 3 at byte 72: the length's checksum is wrong, "
        "so that no record behind it can be found",
        "indexes: 2 written",
        "23 records in 2 files, 980 B: 1 damaged",
    ]
    again = index("--allow-damage")
    assert again.returncode == 0
    assert "indexes: 2 there already" in again.stdout
    assert "indexes: 2 written" in index("--overwrite").stdout


def test_progress_of_a_long_command_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 4.0, 15.0, 15.0, 16.0, 40.0, 40.0])
    with records._Meter("bytes", lambda: next(seconds)) as meter:
        meter.at(1_000_000, 60_000_000)
        meter.at(15_000_000, 60_000_000)
        meter.at(16_000_000, 60_000_000)
        meter.at(40_000_000, 60_000_000)
    assert capsys.readouterr().err.splitlines() == ["15.0 MB of 60.0 MB, 45 s left", "40.0 MB of 60.0 MB, 20 s left"]


def test_retries_are_one_line_in_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 1.0, 2.0, 3.0, 11.0])
    with records._Meter("bytes", lambda: next(seconds)):
        for _ in range(4):
            gcs_clients.endpoint().report_retry("gs://b/a", "the bucket answered HTTP 503")
    gcs_clients.endpoint().report_retry("gs://b/a", "after the command")
    line = "note: gs://b/a: the bucket answered HTTP 503; trying again"
    assert capsys.readouterr().err.splitlines() == [line, f"{line} (2 new tries since the last line)"]
