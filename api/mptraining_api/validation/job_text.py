"""The one MPTrainingJob, or MPTrainingSweep, in a YAML file, which may have other objects too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from mptraining_api.problems import InvalidSpec
from mptraining_api.validation.api_versions import API_VERSION, is_served
from mptraining_api.validation.mistakes import InvalidJobFile, Mistake
from mptraining_api.validation.yaml_errors import not_a_job
from mptraining_api.validation.yaml_text import YamlDocument, read_text, read_yaml

KIND: Literal["MPTrainingJob"] = "MPTrainingJob"
_SWEEP = "MPTrainingSweep"


def load_job_text(path: Path | str, *, kind: str = KIND) -> YamlDocument:
    """Read the document of that kind from the file at `path`, without its status. Raises InvalidSpec."""
    return read_job_text(read_text(path, expected=f"an {kind} in YAML"), file=str(path), kind=kind)


def read_job_text(text: str, *, file: str, kind: str = KIND) -> YamlDocument:
    """Return the document of that kind in `text`, without its status; objects of other kinds are ignored.

    Raises InvalidSpec for text that is not YAML, and if there is not exactly one such document.
    """
    documents = read_yaml(text, file=file)
    jobs = [
        document for document in documents if _is_mapping(document) and document.content.get("kind") == kind
    ] or documents
    if not jobs or not any(
        _is_mapping(document) and {"kind", "apiVersion", "spec"} & set(document.content) for document in jobs
    ):
        raise InvalidJobFile([Mistake(file, None, not_a_job(text, file))])
    if len(jobs) != 1:
        raise InvalidSpec(file, f"{len(jobs)} documents", expected=f"exactly one {kind}")
    job = jobs[0]
    content: dict[str, Any] = job.content
    if content.get("kind") != kind or not is_served(content.get("apiVersion")):
        raise job.located([_wrong_kind(content, kind)])
    return YamlDocument(
        file, {key: value for key, value in content.items() if key != "status"}, job.lines, job.ambiguous
    )


def _is_mapping(document: YamlDocument) -> bool:
    return isinstance(document.content, dict)


def holds_sweep(path: Path | str) -> bool:
    """Return whether the file at `path` has an MPTrainingSweep; False for a file that cannot be read."""
    try:
        documents = read_yaml(read_text(path, expected=""), file=str(path))
    except InvalidSpec:
        return False
    return any(_is_mapping(document) and document.content.get("kind") == _SWEEP for document in documents)


def _wrong_kind(content: dict[str, Any], kind: str) -> InvalidSpec:
    given = f"{content.get('apiVersion')!r}, {content.get('kind')!r}"
    field = "kind" if is_served(content.get("apiVersion")) else "apiVersion"
    step = ""
    if content.get("kind") == _SWEEP:
        step = "A sweep runs with `mptj run FILE` and `mptj submit FILE`."
    elif kind == _SWEEP and content.get("kind") == KIND:
        step = "One job runs with `mptj run FILE`; a sweep has it below spec.job."
    return InvalidSpec(field, f"apiVersion and kind are {given}", expected=f"{API_VERSION!r}, {kind!r}", next_step=step)
