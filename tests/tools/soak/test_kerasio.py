"""The harness for keras.io's programs: its stubs, its records, what it calls an outcome, its table. Nothing trains."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_records.index.dataset_index import index_local_file
from mptraining_records.storage import storage
from mptraining_records.tfrecord import example
from tests.soak.keras_io import arrays, capture, files, functions, outcomes, table, variants
from tests.soak.keras_io.catalogue import scripts
from tests.soak.keras_io.outcomes import Kind
from tests.soak.keras_io.runs import Bench, Run, environ, read
from tests.soak.keras_io.server import TIMED_OUT
from tests.soak.keras_io.stubs import VARIABLE, Settings
from tests.soak.keras_io.variants import PLAIN, Variant

SCRIPT_1 = Variant("script")


@pytest.mark.parametrize(
    ("name", "shape", "labels"),
    [
        ("mnist", (28, 28), ()),
        ("fashion_mnist", (28, 28), ()),
        ("cifar10", (32, 32, 3), (1,)),
        ("cifar100", (32, 32, 3), (1,)),
    ],
)
def test_sets_of_images_have_keras_shapes_and_every_class(
    name: str, shape: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    (x, y), (x_test, y_test) = arrays.images(name, (200, 100))
    assert (x.shape, y.shape, x.dtype) == ((200, *shape), (200, *labels), np.uint8)
    assert (len(x_test), len(y_test)) == (100, 100)
    assert set(y.ravel()) == set(range(100 if name == "cifar100" else 10))


def test_token_lists_are_of_several_lengths_and_within_the_vocabulary() -> None:
    (x, y), _ = arrays.token_lists("imdb", (40, 4), vocabulary=50, maxlen=60)
    assert x.dtype == object
    assert len({len(each) for each in x}) > 1
    assert max(map(max, x)) < 50
    assert set(y) == {0, 1}


def test_archives_hold_what_their_scripts_look_for() -> None:
    with tarfile.open(fileobj=io.BytesIO(files.content("https://ai.stanford.edu/~amaas/aclImdb_v1.tar.gz"))) as reviews:
        assert {"aclImdb/train/pos/0_1.txt", "aclImdb/test/neg/0_1.txt", "aclImdb/train/unsup/0_0.txt"} <= {
            *reviews.getnames()
        }
    with zipfile.ZipFile(io.BytesIO(files.content("http://x.test/spa-eng.zip?raw=true"))) as pairs:
        lines = pairs.read("spa-eng/spa.txt").decode().splitlines()
    assert all(line.count("\t") == 1 for line in lines)
    forest = list(csv.reader(io.StringIO(gzip.decompress(files.content("http://x.test/covtype.data.gz")).decode())))
    assert {len(row) for row in forest} == {55}
    assert {row[-1] for row in forest} == set("1234567")
    people = files.content("http://x.test/adult.data").decode().splitlines()
    assert {line.count(",") for line in people} == {14}
    assert files.content("http://x.test/resnet50_weights_tf.h5") == files.NO_WEIGHTS
    with pytest.raises(LookupError, match=r"no file for http://x\.test/unknown"):
        files.content("http://x.test/unknown")


def test_a_process_with_the_stubs_downloads_nothing(tmp_path: Path) -> None:
    program = """
import urllib.request, pathlib
print(urllib.request.urlopen("http://x.test/heart.csv").read().count(b"\\n"))
print(pathlib.Path(urllib.request.urlretrieve("http://x.test/ml-1m.zip", "a.zip")[0]).stat().st_size > 1000)
pathlib.Path("creditcard.csv").write_text("here")
print(open("/Users/fchollet/Downloads/creditcard.csv").read())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environ(tmp_path, None), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["161", "True", "here"]


def test_settings_reach_a_process() -> None:
    settings = Settings(rows=(10, 2), epochs=None, steps=3, record="/tmp/fits")
    assert Settings.read({VARIABLE: settings.write()}) == settings
    assert Settings.read({}) == Settings()


def test_scripts_are_found_by_folder_and_year(tmp_path: Path) -> None:
    for name in ("vision/mnist_convnet", "vision_2023/mnist_convnet", "guides/functional_api", "setup"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("")
    found = {each.name: each for each in scripts(tmp_path)}
    assert list(found) == ["guides/functional_api", "vision/mnist_convnet", "vision_2023/mnist_convnet"]
    assert [each.legacy for each in found.values()] == [False, False, True]
    assert found["vision_2023/mnist_convnet"].title == "vision/mnist_convnet"
    assert found["guides/functional_api"].settings.epochs == 1
    assert [each.name for each in scripts(tmp_path, ["mnist"])] == ["vision/mnist_convnet", "vision_2023/mnist_convnet"]


def kept(folder: Path, **columns: Any) -> None:
    """Data as `capture.keep` leaves them."""
    parts = {part: [name for name in columns if name.startswith(part[0])] for part in ("x", "y", "weight")}
    np.savez(folder / capture.DATA, **columns)
    (folder / capture.FACTS).write_text(json.dumps(parts))


def test_captured_data_become_records_and_a_job_that_can_work(tmp_path: Path) -> None:
    x, y, weight = np.arange(24, dtype="uint8").reshape(4, 3, 2), np.array([0.5, 1, 2, 3]), np.ones(4)
    kept(tmp_path, x=x, y=y, weight=weight)
    sections = functions.sections(tmp_path, tmp_path)
    assert sections["data"]["label"] == "y"
    assert sections["data"]["sampleWeight"] == "weight"
    path = tmp_path / "train-00000-of-00001.tfrecord"
    content = path.read_bytes()
    assert index_local_file(storage.stat(str(path))).count == 4
    first = example.parse(content[12 : 12 + int.from_bytes(content[:8], "little")])
    assert first["x"][1].tolist() == [0, 1, 2, 3, 4, 5]
    assert first["y"][1].tolist() == [0.5]
    program = functions.program(tmp_path, "vae.py")
    document = variants.job(Variant("function", 2, variants.BFLOAT16), program, sections, str(tmp_path / "run"))
    job = resolve(MPTrainingJob.parse(document), ClusterSettings())
    assert (job.replicas, job.precision.policy) == (2, "mixed_bfloat16")
    assert "model_of('vae.py')" in (tmp_path / f"{functions.MODULE}.py").read_text()


def test_data_that_fit_in_no_records_give_no_function_program(tmp_path: Path) -> None:
    with pytest.raises(functions.NoFunction, match="calls no fit"):
        functions.sections(tmp_path, tmp_path)
    (tmp_path / capture.FACTS).write_text(json.dumps({"refused": "a generator"}))
    with pytest.raises(functions.NoFunction, match="a generator"):
        functions.sections(tmp_path, tmp_path)


@dataclass
class Answers:
    """In place of the server of processes: ends each run as it is told, and notes the jobs that it got."""

    ends: list[tuple[int, str, str]]
    jobs: list[Mapping[str, Any]] = field(default_factory=list)

    def run(
        self, module: str, arguments: list[str], folder: Path, environment: Mapping[str, str], seconds: float
    ) -> int:
        code, reason, message = self.ends.pop(0)
        (folder / "out.log").write_text(f"some line\n{message}\n")
        if module == "mptraining_trainer.__main__":
            self.jobs.append(json.loads((folder / "job.json").read_text()))
            events = folder / "run" / "events"
            events.mkdir(parents=True)
            (events / "1-a-0-1.jsonl").write_text(
                json.dumps({"kind": "Finished", "reason": reason, "message": message})
            )
        Path(Settings.read(environment).record or os.devnull).write_text(
            json.dumps({"history": {"loss": [1.0]}}) + "\n"
        )
        return code


def bench(folder: Path, *ends: tuple[int, str, str]) -> tuple[Bench, Answers]:
    (folder / "scripts" / "vision").mkdir(parents=True)
    (folder / "scripts" / "vision" / "net.py").write_text("print()\n")
    answers = Answers(list(ends))
    return Bench(answers, folder / "work", 9.0, "abc"), answers  # type: ignore[arg-type]


def test_a_refusal_that_names_a_field_is_followed(tmp_path: Path) -> None:
    refused = 2, "InvalidProgram", "spec.strategy: the script opens its own strategy. Set strategy: None."
    here, answers = bench(tmp_path, refused, (0, "Succeeded", "the script ran to its end"))
    (script,) = scripts(tmp_path / "scripts")
    run = here.run(script, Variant("script", 2))
    assert run.succeeded
    assert run.followed.startswith("strategy: None, after: spec.strategy")
    assert [job["strategy"] for job in answers.jobs] == ["Mirrored", "None"]
    assert (run.commit, run.fits) == ("abc", [{"history": {"loss": [1.0]}}])


def test_a_plain_run_that_fails_is_described_by_its_last_error(tmp_path: Path) -> None:
    here, _ = bench(tmp_path, (1, "", "tensorflow.errors.ValueError: shapes"), (TIMED_OUT, "", ""))
    (script,) = scripts(tmp_path / "scripts")
    first, second = here.run(script, PLAIN), here.run(script, PLAIN)
    assert (first.reason, first.message) == ("Error", "tensorflow.errors.ValueError: shapes")
    assert second.reason == "Timeout"


def ran(variant: Variant, code: int = 0, reason: str = "", message: str = "", loss: float = 1.0, **more: Any) -> Run:
    fits = [{"own_train_step": True, "history": {"loss": [loss], "accuracy": [0.5]}, "layers": {"float32": 2}}]
    return Run("vision/net", str(variant), code, 1.0, reason, message, fits=fits, **more)


def by_key(*runs: Run) -> dict[tuple[str, str], Run]:
    return {(each.script, each.variant): each for each in runs}


MIXED = Variant("script", 1, variants.BFLOAT16)
SCRIPT_2 = Variant("script", 2, variants.BFLOAT16)


@pytest.mark.parametrize(
    ("run", "others", "kind", "note"),
    [
        (ran(SCRIPT_1), [ran(PLAIN)], Kind.OK, ""),
        (ran(SCRIPT_1, loss=1.5), [ran(PLAIN)], Kind.OK, "losses 0.5 apart from plain Keras"),
        (ran(SCRIPT_1, loss=float("nan")), [ran(PLAIN, loss=float("nan"))], Kind.OK, ""),
        (ran(MIXED, loss=1.5), [ran(PLAIN)], Kind.OK, ""),
        (ran(SCRIPT_1, 2, "InvalidProgram", "spec.keras: no\nmore"), [ran(PLAIN)], Kind.REFUSED, "spec.keras: no"),
        (
            ran(SCRIPT_1, 1, "ProgramFailed", "net.py:3: ValueError: x"),
            [ran(PLAIN)],
            Kind.OURS,
            "net.py:3: ValueError: x",
        ),
        (
            ran(SCRIPT_1, 1, "ProgramFailed", "net.py:3: ValueError: x"),
            [ran(PLAIN, 1, "Error", "ValueError: x")],
            Kind.AS_PLAIN,
            "net.py:3: ValueError: x",
        ),
        (
            ran(MIXED, 1, "ProgramFailed", "net.py:3: ValueError: x"),
            [ran(PLAIN), ran(MIXED.plain, 1, "Error", "errors.ValueError: x")],
            Kind.AS_PLAIN,
            "net.py:3: ValueError: x",
        ),
        (
            ran(MIXED, 1, "ProgramFailed", "TypeError: x"),
            [ran(MIXED.plain, 1, "Error", "ValueError: x")],
            Kind.OURS,
            "TypeError: x",
        ),
        (
            ran(SCRIPT_2, 1, "ProgramFailed", "net.py:3: TypeError: x", followed="strategy: None, after: y"),
            [ran(PLAIN), ran(SCRIPT_2.plain), ran(MIXED.plain, 1, "Error", "TypeError: x")],
            Kind.AS_PLAIN,
            "net.py:3: TypeError: x",
        ),
        (ran(SCRIPT_1, 2, "InvalidProgram", "m:b raised KeyError: x"), [], Kind.OURS, "m:b raised KeyError: x"),
        (ran(SCRIPT_1, 1, "ProgramFailed", "/a/b-c/net.py:3: \x1b[1mx"), [ran(PLAIN)], Kind.OURS, "net.py:3: x"),
        (ran(SCRIPT_1, TIMED_OUT, "Timeout"), [], Kind.NONE, "not at its end within the time that a run has"),
    ],
)
def test_an_outcome_is_judged_against_plain_keras(run: Run, others: list[Run], kind: Kind, note: str) -> None:
    assert outcomes.of(run, by_key(run, *others)) == outcomes.Outcome(kind, note)


def test_the_table_of_one_program() -> None:
    runs = by_key(
        ran(PLAIN),
        ran(SCRIPT_1, followed="strategy: None, after: spec.strategy"),
        ran(MIXED, 1, "ProgramFailed", "net.py:3: ValueError: a|b"),
        Run(
            "vision/net", "function-1-float32", 0, 0.0, outcomes.NO_FUNCTION, "its data fit in no records: a generator"
        ),
    )
    lines = table.document(runs).splitlines()
    assert lines[0].startswith("1 programs, 1 of them with a `train_step`")
    assert "| script | 1 | 0 | 0 | 1 |" in lines
    assert "| vision/net † | ok | ok [1] |  | fails [2] |  |  | - [3] |  |  |  |" in lines
    assert lines[-3:] == [
        "1. with strategy: None, after: spec.strategy",
        "2. net.py:3: ValueError: a\\|b",
        "3. its data fit in no records: a generator",
    ]


def test_results_are_read_back_and_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(ran(PLAIN, 1).line() + "\n" + ran(PLAIN).line() + "\n")
    assert read(path) == by_key(ran(PLAIN))
    assert read(tmp_path / "none") == {}
