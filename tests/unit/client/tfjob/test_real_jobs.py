"""`mptj convert-tfjob` on TFJobs that other people wrote (real_jobs.yaml names the repositories)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mptraining.cli.main import app
from mptraining.tfjob.convert import Conversion, convert_file
from mptraining.tfjob.replica import Choices
from mptraining_api.accelerators import canonical_name
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.validation.mistakes import InvalidJobFile, field_text
from tests.jobs import parsed_job

JOBS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "real_jobs.yaml").read_text(encoding="utf-8"))


def _jobs(kind: str) -> list[Any]:
    return [pytest.param(each, id=each["source"].split()[0]) for each in JOBS if kind in each]


def _convert(entry: dict[str, Any], folder: Path) -> Conversion:
    given: dict[str, list[str]] = {}
    flags = iter(entry.get("flags", ()))
    for name, value in zip(flags, flags, strict=True):
        given.setdefault(name.removeprefix("--").replace("-", "_"), []).append(value)
    without = given.pop("without", [])
    choices = {name: canonical_name(value) if name == "accelerator" else value for name, (value,) in given.items()}
    path = folder / "tfjob.yaml"
    path.write_text(yaml.safe_dump(entry["tfjob"]), encoding="utf-8")
    (found,), _ = convert_file(path, Choices(**choices), without=without)
    return found


def test_there_are_many_of_them_from_different_people() -> None:
    sources = [entry["source"].split() for entry in JOBS]
    assert all(len(words) == 3 and len(words[2]) == 40 for words in sources)
    assert len({repository.split("/")[0] for repository, _, _ in sources}) >= 15


@pytest.mark.parametrize("entry", _jobs("spec"))
def test_the_job_can_work(entry: dict[str, Any], tmp_path: Path) -> None:
    found = _convert(entry, tmp_path)
    spec = found.document["spec"]
    assert {name: spec.get(name) for name in entry["spec"]} == entry["spec"]
    job = parsed_job(yaml.safe_dump(found.document))
    assert resolve(job, ClusterSettings()).name == job.metadata.name


@pytest.mark.parametrize("entry", _jobs("refused"))
def test_what_cannot_be_converted_is_refused_with_its_line(entry: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidJobFile) as raised:
        _convert(entry, tmp_path)
    found = {each.problem.where: str(each) for each in raised.value.mistakes}
    assert set(found) == set(entry["refused"])
    assert all(text in found[field] for field, text in entry["refused"].items())
    assert all(each.line for each in raised.value.mistakes)


def _fields(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all values that are no sections."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _fields(each, (*path, name))
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from _fields(each, (*path, index))
    elif value is not None:
        yield path


@pytest.mark.parametrize("entry", _jobs("spec"))
def test_no_field_is_dropped_without_a_word(entry: dict[str, Any], tmp_path: Path) -> None:
    found = _convert(entry, tmp_path)
    told = [*(field_text(each.source) for each in found.carried), *(each.where for each in found.left_out)]
    fields = [field_text(path) for path in _fields(entry["tfjob"])]
    # The version and the kind are others by definition; a container's name is the operator's.
    fields = [each for each in fields if each not in ("apiVersion", "kind") and not each.endswith("containers[0].name")]
    by_decision = ("metadata.generateName",)
    assert [each for each in fields if not each.startswith((*told, *by_decision))] == []


@pytest.mark.parametrize("entry", _jobs("spec")[:3])
def test_the_command_writes_a_file_that_check_accepts(entry: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tfjob.yaml").write_text(yaml.safe_dump(entry["tfjob"]), encoding="utf-8")
    written = tmp_path / "job.yaml"
    runner = CliRunner()
    arguments = ["convert-tfjob", str(tmp_path / "tfjob.yaml"), "-o", str(written), *entry.get("flags", ())]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "carried over" in done.stderr
    assert done.stdout == ""
    assert runner.invoke(app, ["check", str(written)]).exit_code == 0
