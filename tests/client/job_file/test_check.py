"""What `mptj check` and `mptj run` find in the data of a job before TensorFlow starts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.job_file import data as job_data
from mptraining.job_file.check import check_job_file
from mptraining.local.run import run_local
from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_api.validation.mistakes import InvalidJobFile
from mptraining_records.storage import storage
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.features import Feature

JobFile = Callable[..., Path]


@pytest.fixture
def job(job_file: JobFile) -> Callable[..., Path]:
    """Write a job with these changes, and a manifest of three classes beside its records."""

    def write(*changes: tuple[str, str], classes: tuple[str, ...] | None = ("a", "b", "c"), records: int = 0) -> Path:
        path = job_file()
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path.write_text(text)
        split = manifest.Manifest(
            name="train",
            features=(
                Feature(name="image", dtype="uint8", shape=(8, 8)), Feature(name="label", dtype="int64", shape=()),
            ),
            label="label",
            classes=classes,
            records=records,
            files=(manifest.File(name="train-00000-of-00001.tfrecord", records=records, bytes=0, crc32c=0),),
        )  # fmt: skip
        manifest.save(str(path.parent / "records"), split)
        return path

    return write


def mistakes(path: Path, *, here: bool = False) -> list[str]:
    try:
        check_job_file(path, here=here)
    except InvalidJobFile as error:
        return [str(each).removeprefix(f"{path}:") for each in error.mistakes]
    return []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("records/train-*", "missing/train-*", "8: spec.data.train[0]: 'missing/train-*.tfrecord': no such f"),
        ("records/val-*", "records/valid-*", "8: spec.data.validation[0]: 'records/valid-*.tfrecord': nothing matches"),
        ("records/train-*.tfrecord", "http://h/x", "8: spec.data.train[0]: 'http://h/x': http:// is not supported"),
        ("records/train-*.tfrecord", "s3://b/x", "8: spec.data.train[0]: 's3://b/x': s3:// is not supported"),
        ("validation:", "label: lable, validation:",
         "8: spec.data.label: 'lable' is no feature of the records; expected 'image' or 'label'. Did you mean 'la"),
        ("validation:", "features: [{name: imgae, dtype: uint8}], validation:",
         "8: spec.data.features[0].name: 'imgae' is no feature"),
        ("classes: 3", "classes: 2",
         "7: spec.program.application.classes: 2, and the label 'label' has 3 classes: a, b, c; expected 3"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_trained_on(job: Callable[..., Path], old: str, new: str, said: str) -> None:
    (line,) = mistakes(job((old, new)))
    assert line.startswith(said)


def test_good_data_has_no_mistakes(job: Callable[..., Path]) -> None:
    assert mistakes(job()) == []
    assert mistakes(job((", classes: 3", ""))) == []
    (line,) = mistakes(job((", classes: 3", ""), classes=None))
    assert "classes: missing, and the data's manifest names no classes" in line


def test_an_absolute_path_may_be_the_clusters(job: Callable[..., Path], tmp_path: Path) -> None:
    path = job(("records/train-*", "/data/of/the/cluster/train-*"))
    assert mistakes(path) == []
    assert any("must be in the image or a volume" in note for note in check_job_file(path).notes)
    assert mistakes(path, here=True) != []
    assert mistakes(job(("records/train-*", f"{tmp_path}/train-*"))) != [], "the folder is on this machine"


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (InvalidData("gs://b/x", "nothing matches"), True),
        (InvalidData("gs://b/x", "there is no bucket 'b'"), True),
        (InvalidData("gs://b/x", "permission denied"), False),
        (StorageUnavailable("gs://b/x", "no answer"), False),
        (OSError("network is unreachable"), False),
    ],
)
def test_a_bucket_is_a_mistake_only_if_it_says_so(
    job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, answer: Exception, mistake: bool
) -> None:
    def glob(_: str) -> Any:
        raise answer

    path = job(("records/train-*.tfrecord", "gs://b/x"), ('"records/val-*.tfrecord"', '"gs://b/x"'))
    monkeypatch.setattr(storage, "glob", glob)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")
    assert mistakes(path) == [], "without credentials nothing is asked"
    monkeypatch.setenv("MPTRAINING_GCS_ANONYMOUS", "1")
    assert bool(mistakes(path)) is mistake


def test_a_bucket_that_does_not_answer_delays_the_check_for_a_few_seconds_only(
    job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job(("records/train-*.tfrecord", "gs://b/x"), ('"records/val-*.tfrecord"', '"gs://b/x"'))
    never = threading.Event()
    monkeypatch.setattr(storage, "glob", lambda _: never.wait())
    monkeypatch.setattr(job_data, "_BUCKET_SECONDS", 0.05)
    monkeypatch.setenv("MPTRAINING_GCS_ANONYMOUS", "1")
    assert any("the bucket could not be looked at" in note for note in check_job_file(path).notes)
    never.set()


@pytest.mark.parametrize("change", [("records/train-*", "missing/train-*"), ("name: mlp", "name: VGG99")])
def test_a_run_with_a_mistake_leaves_no_run_folder(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = job_file()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InvalidJobFile):
        run_local(path, command=("false",))
    assert not (tmp_path / "runs").exists()


class Test_entry_point:
    @pytest.fixture
    def of(self, job_file: JobFile) -> Callable[..., list[str]]:
        """Return the mistakes of a job with this entry point beside a module `seg` and a package `nets`."""

        def check(entry_point: str, *, more: str = "", here: bool = False, modules: bool = True) -> list[str]:
            path = job_file()
            application = next(line for line in path.read_text().splitlines() if "application:" in line)
            function = f"function: {{entryPoint: '{entry_point}'}}"
            start, end = (
                application.index("application:"),
                application.index("}", application.index("application:")) + 1,
            )
            text = path.read_text().replace(application, application[:start] + function + application[end:])
            path.write_text(text + more)
            if modules:
                (path.parent / "seg.py").write_text(
                    "from layers import conv as block, dense\nimport keras\nmake = dense\n"
                    "if keras:\n    def late(): pass\ndef build():\n    inner = 1\nassert False, 'imported'\n"
                )
                (path.parent / "nets").mkdir(exist_ok=True)
                (path.parent / "nets" / "__init__.py").write_text("from nets.unet import *\n")
                (path.parent / "nets" / "unet.py").write_text("def build(:\n")
            return mistakes(path, here=here)

        return check

    @pytest.mark.parametrize(
        "entry_point", ["seg:build", "seg:block", "seg:dense", "seg:make", "seg:late", "nets:any", "json.tool:main"]
    )
    def test_functions_that_are_there_are_found_without_an_import(
        self, of: Callable[..., list[str]], entry_point: str
    ) -> None:
        assert of(entry_point) == []

    @pytest.mark.parametrize(
        ("entry_point", "said"),
        [
            (
                "segg:build",
                r"^\d+: spec.program.function.entryPoint: no module 'segg' .*project\). Did you mean 'seg'\?",
            ),
            ("seg:biuld", r"module 'seg' has no 'biuld'. Did you mean 'build'\?"),
            ("seg:inner", r"module 'seg' has no 'inner'. It has build\."),
            ("nets.unat:build", r"no module 'nets.unat' .*nets\). Did you mean 'unet'\?"),
            ("nets.unet:build", r"'nets.unet' cannot be imported: .* \(at unet.py:1\)"),
        ],
    )
    def test_mistakes_have_the_line_of_the_job_file(
        self, of: Callable[..., list[str]], entry_point: str, said: str
    ) -> None:
        (found,) = of(entry_point)
        assert re.search(said, found)

    def test_code_may_be_elsewhere_on_a_cluster_and_not_here(self, of: Callable[..., list[str]]) -> None:
        image = "  podTemplate: {image: registry.example.com/segmentation:1}\n"
        assert of("segg:build", more=image) == []
        assert len(of("segg:build", here=True)) == 1

    def test_a_folder_without_any_code_is_not_where_the_code_is(self, of: Callable[..., list[str]]) -> None:
        assert of("segg:build", modules=False) == []


class Test_zero_steps:
    BATCH = ("batchSize: {global: 64}", "batchSize: {global: 100}")

    def test_a_batch_of_more_than_all_records_is_a_mistake(self, job: Callable[..., Path]) -> None:
        (found,) = mistakes(job(self.BATCH, records=48))
        assert re.match(
            r"\d+: spec.training.batchSize: 100 examples a step, 48 in the training data: zero steps. Lower", found
        )

    def test_enough_records_or_unknown_ones_are_none(self, job: Callable[..., Path]) -> None:
        assert mistakes(job(self.BATCH, records=100)) == []
        path = job(self.BATCH, records=48)
        (path.parent / "records" / "train-00001-of-00002.tfrecord").touch()
        assert mistakes(path) == []
