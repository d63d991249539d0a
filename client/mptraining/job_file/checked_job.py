"""Every mistake in a job file at once, before any TensorFlow, cluster or run folder is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mptraining.job_file.data import absent_models, check_data, zero_steps
from mptraining.job_file.entry_point import check_entry_point
from mptraining.job_file.paths import source_folder
from mptraining.packaging.keras_choice import with_keras_of_folder
from mptraining_api.resolve.document_problems import DocumentProblems, document_problems
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.validation.job_text import load_job_text
from mptraining_api.validation.keras_names import table
from mptraining_api.validation.mistakes import value_at
from mptraining_api.validation.yaml_text import YamlDocument


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job file without mistakes: `written` as in it, `resolved` with Keras by its code, `notes` for its author."""

    written: MPTrainingJob
    resolved: ResolvedJob
    notes: tuple[str, ...]


Settings = Callable[[str], ClusterSettings]
Complete = Callable[[MPTrainingJob], MPTrainingJob]


def check_job_file(
    path: Path,
    *,
    here: bool = False,
    document: Mapping[str, Any] | None = None,
    settings: Settings = lambda _: ClusterSettings(),
    complete: Complete = lambda job: job,
) -> CheckedJob:
    """Check the job in the file at `path`; with `here` as a job that will run on this machine.

    `document` is a job that is in no file; its relative paths begin in the folder of `path`. `settings` returns the
    settings for an accelerator's type, `complete` the job to resolve, such as one with absolute paths. Raises
    InvalidJobFile with every mistake, and InvalidSpec for a file that cannot be read.
    """
    text = load_job_text(path) if document is None else YamlDocument("", document, {})
    folder = path.absolute().parent
    chosen = settings(str(value_at(text.content, ("spec", "accelerator", "type"))))
    written, _ = MPTrainingJob.validate_document(text.content)
    document, notes = text.content, list[str]()
    if written is not None:
        document, notes = with_keras_of_folder(written.to_document(), source_folder(written.spec, folder))
    job_problems = document_problems(document, chosen, other_keras=here and _has_other_keras())
    data = check_data(value_at(document, ("spec",)), folder, here=here)
    code, code_notes = check_entry_point(value_at(document, ("spec",)), folder, here=here)
    if job_problems.problems or data.problems:
        raise text.located([*job_problems.problems, *data.problems, *code])
    notes += notes_of(text, job_problems)
    assert written is not None
    job = complete(MPTrainingJob.parse(document))
    resolved = resolve(job, chosen)
    if problems := [*zero_steps(resolved, folder), *absent_models(resolved, folder, here=here), *code]:
        raise text.located(problems)
    return CheckedJob(written, resolved, (*notes, *data.notes, *code_notes))


def notes_of(text: YamlDocument, checked: DocumentProblems) -> list[str]:
    """Return notes on values that readers of YAML take differently, and on names that the program may register."""
    doubts = checked.doubts
    return [
        *(f"line {line}: {ambiguity}" for line, ambiguity in text.ambiguous),
        *(
            f"{doubt.where}: {doubt.found}, unless the program registers it. {doubt.next_step}".rstrip()
            for doubt in doubts
        ),
    ]


def _has_other_keras() -> bool:
    """Return whether this machine has another Keras than the table of names was made from."""
    try:
        return version("keras") != table()["Keras3"].version
    except PackageNotFoundError:
        return False
