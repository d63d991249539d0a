"""What `mptj check` and `mptj run` find in the data of a job before TensorFlow starts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.job_file import data as job_data
from mptraining.job_file.checked_job import check_job_file
from mptraining.local.runner import LocalRunner
from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_api.validation.mistakes import InvalidJobFile
from mptraining_records.tfrecord import manifest
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage

JobFile = Callable[..., Path]
BATCH = ("batchSize: {global: 64}", "batchSize: {global: 100}")


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
        return [str(mistake).removeprefix(f"{path}:") for mistake in error.mistakes]
    return []


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
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
def test_data_that_cannot_be_trained_on(job: Callable[..., Path], old: str, new: str, mistake: str) -> None:
    (line,) = mistakes(job((old, new)))
    assert line.startswith(mistake)


@pytest.mark.parametrize(
    ("changes", "split", "mistake"),
    [
        ((), {}, None),
        (((", classes: 3", ""),), {}, None),
        (((", classes: 3", ""),), {"classes": None}, "spec.program.application.classes: missing, and the data's mani"),
        ((BATCH,), {"records": 100}, None),
        ((BATCH,), {"records": 48}, "spec.training.batchSize: 100 examples a step, 48 in the training data: zero st"),
    ],
)
def test_what_the_manifest_of_the_data_says(
    job: Callable[..., Path], changes: tuple[tuple[str, str], ...], split: dict[str, Any], mistake: str | None
) -> None:
    lines = mistakes(job(*changes, **split))
    assert [mistake for line in lines if mistake and mistake in line] == ([] if mistake is None else [mistake])
    assert len(lines) == (mistake is not None)


def test_shards_that_no_manifest_names_may_fill_a_batch(job: Callable[..., Path]) -> None:
    path = job(BATCH, records=48)
    (path.parent / "records" / "train-00001-of-00002.tfrecord").touch()
    assert mistakes(path) == []


def test_an_absolute_path_may_be_the_clusters(job: Callable[..., Path], tmp_path: Path) -> None:
    path = job(("records/train-*", "/data/of/the/cluster/train-*"))
    assert mistakes(path) == []
    assert any("must be in the image or a volume" in note for note in check_job_file(path).notes)
    assert mistakes(path, here=True) != []
    assert mistakes(job(("records/train-*", f"{tmp_path}/train-*"))) != [], "the folder is on this machine"


@pytest.mark.parametrize(
    ("answer", "mistake", "note"),
    [
        (InvalidData("gs://b/x", "nothing matches"), True, False),
        (InvalidData("gs://b/x", "there is no bucket 'b'"), True, False),
        (InvalidData("gs://b/x", "permission denied"), False, True),
        (StorageUnavailable("gs://b/x", "no answer"), False, True),
        (OSError("network is unreachable"), False, True),
        # A bucket that does not answer delays the check for a moment only.
        (None, False, True),
    ],
)
def test_a_bucket_is_a_mistake_only_if_it_says_so(
    job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, answer: Exception | None, mistake: bool, note: bool
) -> None:
    never = threading.Event()

    def glob(_: str) -> Any:
        if answer is not None:
            raise answer
        never.wait()

    path = job(("records/train-*.tfrecord", "gs://b/x"), ('"records/val-*.tfrecord"', '"gs://b/x"'))
    monkeypatch.setattr(storage, "glob", glob)
    monkeypatch.setattr(job_data, "_BUCKET_SECONDS", 0.05)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")
    assert mistakes(path) == [], "without credentials nothing is asked"
    monkeypatch.setenv("MPTRAINING_GCS_ANONYMOUS", "1")
    assert bool(mistakes(path)) is mistake
    if note:
        assert any("the bucket could not be looked at" in text for text in check_job_file(path).notes)
    never.set()


@pytest.mark.parametrize("change", [("records/train-*", "missing/train-*"), ("name: mlp", "name: VGG99")])
def test_a_run_with_a_mistake_leaves_no_run_folder(
    job_file: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = job_file()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InvalidJobFile):
        LocalRunner(command=("false",)).run(path)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def calling(job_file: JobFile) -> Callable[..., Path]:
    """Write a job with this entry point beside a module `seg` and a package `nets`."""

    def write(entry_point: str, *, more: str = "", files: dict[str, str] | None = None, modules: bool = True) -> Path:
        path = job_file()
        before, _, rest = path.read_text().partition("application:")
        function = f"function: {{entryPoint: '{entry_point}'}}"
        path.write_text(before + function + rest[rest.index("}") + 1 :] + more)
        known = {
            "seg.py": "from layers import conv as block, dense\nimport keras\nmake = dense\n"
            "if keras:\n    def late(): pass\ndef build():\n    inner = 1\nassert False, 'imported'\n",
            "nets/__init__.py": "from nets.unet import *\n",
            "nets/unet.py": "def build(:\n",
        }
        for name, content in {**(known if modules else {}), **(files or {})}.items():
            (path.parent / name).parent.mkdir(exist_ok=True)
            (path.parent / name).write_text(content)
        return path

    return write


@pytest.mark.parametrize(
    "entry_point", ["seg:build", "seg:block", "seg:dense", "seg:make", "seg:late", "nets:any", "json.tool:main"]
)
def test_functions_are_found_without_an_import(calling: Callable[..., Path], entry_point: str) -> None:
    assert mistakes(calling(entry_point), here=True) == []
    assert not any("entryPoint" in note for note in check_job_file(calling(entry_point)).notes)


@pytest.mark.parametrize(
    "text",
    [
        "def _init():\n    global build\n    def build(): pass\n_init()\n",
        "globals().update(build=print)\n",
        "import sys\nsetattr(sys.modules[__name__], 'build', print)\n",
        "def __getattr__(name): return print\n",
        # Python's parser raises RecursionError for the first and MemoryError for the second.
        "build = " + "+".join(["0"] * 20000),
        "build = " + "-" * 20000 + "1",
        # A warning at the import.
        "'\\d'\ndef build(): pass\n",
    ],
)
def test_functions_that_are_bound_in_other_ways_are_no_mistakes(
    calling: Callable[..., Path], text: str, recwarn: pytest.WarningsRecorder
) -> None:
    assert mistakes(calling("other:build", files={"other.py": text}), here=True) == []
    assert not recwarn.list


BOTH = {"both.py": "def build(): pass\n", "both/__init__.py": "def main(): pass\n"}


@pytest.mark.parametrize(
    ("entry_point", "mistake"),
    [
        ("segg:build", r"^\d+: spec.program.function.entryPoint: no module 'segg' .*project\). Did you mean 'seg'\?"),
        ("seg:biuld", r"module 'seg' has no 'biuld'. Did you mean 'build'\?"),
        ("seg:other", r"module 'seg' has no 'other'. It has build\."),
        ("both:build", r"module 'both' has no 'build'. It has main\."),
        ("nets.unat:build", r"no module 'nets.unat' .*nets\). Did you mean 'unet'\?"),
        ("nets.unet:build", r"'nets.unet' cannot be imported: .* \(at unet.py:1\)"),
        ("seg.unet:build", r"'seg' is not a package, but \S*seg.py; expected a folder \S*project/seg$"),
    ],
)
def test_a_missing_function_has_the_line_of_the_job_file(
    calling: Callable[..., Path], entry_point: str, mistake: str
) -> None:
    (line,) = mistakes(calling(entry_point, files=BOTH), here=True)
    assert re.search(mistake, line)


def test_a_run_here_imports_from_the_working_directory_too(
    calling: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proj" / "models").mkdir(parents=True)
    (tmp_path / "proj" / "models" / "unet.py").write_text("def build(): pass\n")
    monkeypatch.chdir(tmp_path / "proj")
    assert mistakes(calling("models.unet:build"), here=True) == []
    (line,) = mistakes(calling("models.unet:biuld"), here=True)
    assert "module 'models.unet' has no 'biuld'. Did you mean 'build'?" in line
    (line,) = mistakes(calling("modells.unet:build"), here=True)
    assert "no module 'modells' (searched" in line


SHIPPED = "  source: {configMap: {name: code}}\n  podTemplate: {image: registry.example.com/a:1}\n"


@pytest.mark.parametrize(
    ("entry_point", "options", "note"),
    [
        ("segg:build", {}, "no module 'segg' (searched "),
        (
            "seg:biuld",
            {},
            "module 'seg' has no 'biuld', which is no mistake if the image has it. Did you mean 'build'?",
        ),
        ("nets.unet:build", {}, "'nets.unet' cannot be imported: "),
        # The image may have a newer Python, or the module.
        ("newer:build", {"more": SHIPPED, "files": {"source/newer.py": "def build(:\n"}}, "'newer' cannot be imported"),
        ("flower:build", {"more": SHIPPED, "files": {"source/flowers.py": ""}}, "no module 'flower' (searched "),
        ("segg:build", {"modules": False}, None),
        ("segg:build", {"more": "  podTemplate: {image: registry.example.com/segmentation:1}\n"}, None),
        ("seg:biuld", {"more": "  runtime: vision\n"}, None),
        ("nets.unet:build", {"more": f"  source: {{archive: {{uri: gs://b/a.tgz, sha256: {'a' * 64}}}}}\n"}, None),
    ],
)
def test_code_beside_a_job_for_a_cluster_is_worth_a_note_unless_it_is_elsewhere(
    calling: Callable[..., Path], entry_point: str, options: dict[str, Any], note: str | None
) -> None:
    runtime = Runtime.parse({"images": {"cpu": "registry.example.com/segmentation:1"}})
    settings = ClusterSettings(runtimes={"vision": runtime})
    notes = [text for text in check_job_file(calling(entry_point, **options), settings=lambda _: settings).notes
             if "entryPoint" in text]  # fmt: skip
    assert len(notes) == (note is not None)
    assert all(note in text for text in notes if note)


def test_a_function_that_the_shipped_source_lacks_is_a_mistake(calling: Callable[..., Path]) -> None:
    files = {"source/flowers.py": "def build(): pass\n"}
    (line,) = mistakes(calling("flowers:biuld", more=SHIPPED, files=files))
    assert "module 'flowers' has no 'biuld'. Did you mean 'build'?" in line
