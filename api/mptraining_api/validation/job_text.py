"""The one MPTrainingJob in a YAML file, which may have other objects beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from mptraining_api.problems import InvalidSpec
from mptraining_api.validation.mistakes import InvalidJobFile, Mistake
from mptraining_api.validation.yaml_errors import not_a_job
from mptraining_api.validation.yaml_text import YamlDocument, read_yaml

KIND: Literal["MPTrainingJob"] = "MPTrainingJob"
API_VERSION: Literal["mptraining.dev/v1alpha1"] = "mptraining.dev/v1alpha1"


def load_job_text(path: Path | str) -> YamlDocument:
    """Read the job's document from the file at `path`, without its status. Raises InvalidSpec."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "not a text file"
        raise InvalidSpec(str(path), cause, expected="an MPTrainingJob in YAML") from None
    return read_job_text(text, file=str(path))


def read_job_text(text: str, *, file: str) -> YamlDocument:
    """Return the job's document in `text`, without its status; objects of other kinds are ignored.

    Raises InvalidSpec for text that is not YAML, and if there is not exactly one job.
    """
    documents = read_yaml(text, file=file)
    jobs = [each for each in documents if _is_mapping(each) and each.content.get("kind") == KIND] or documents
    if not jobs or not any(_is_mapping(each) and {"kind", "apiVersion", "spec"} & set(each.content) for each in jobs):
        raise InvalidJobFile([Mistake(file, None, not_a_job(text, file))])
    if len(jobs) != 1:
        raise InvalidSpec(file, f"{len(jobs)} documents", expected="exactly one MPTrainingJob")
    job = jobs[0]
    found: dict[str, Any] = job.content
    if found.get("kind") != KIND or found.get("apiVersion") != API_VERSION:
        raise job.located([_wrong_kind(found)])
    return YamlDocument(file, {key: value for key, value in found.items() if key != "status"}, job.lines, job.ambiguous)


def _is_mapping(document: YamlDocument) -> bool:
    return isinstance(document.content, dict)


def _wrong_kind(found: dict[str, Any]) -> InvalidSpec:
    given = f"{found.get('apiVersion')!r}, {found.get('kind')!r}"
    field = "apiVersion" if found.get("apiVersion") != API_VERSION else "kind"
    return InvalidSpec(field, f"apiVersion and kind are {given}", expected=f"{API_VERSION!r}, {KIND!r}")
