"""Command `mptj init`: a new job file from flags, or from questions on a terminal; `mptj schema`: for editors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import note
from mptraining.cli.program_flags import name_prefix, target_kind
from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.job_file.template import Kind


@options.command()
@argument("file", default="job.yaml", metavar="[FILE]", help="The file to write; default: job.yaml.")
@option(
    "--program",
    metavar="PROGRAM",
    shell_complete=completion.targets,
    help="An application (ResNet50, mlp, …), a script (train.py), or module:function.",
)
@option("--name", metavar="NAME", help="The job's name; default: FILE's.")
@options.accelerator("cpu, t4, v100, …: see `mptj accelerators`.")
@option("--data", metavar="PATTERN", help="TFRecords to train on.")
@option("--validation", metavar="PATTERN", help="TFRecords to validate with.")
@option("--label", metavar="NAME", help="The feature that is the label.")
@options.count("--classes", "Number of classes of an application.")
@options.count("--epochs", "Epochs to train; default: 5.", default=5)
@options.count("--batch-size", "Examples per step, over all replicas; default: 64.", default=64)
@option("--run-folder", metavar="FOLDER", help="Run folder, for checkpoints and the model.")
@options.overwrite
def init(
    file: str,
    program: str | None,
    name: str | None,
    accelerator: str | None,
    data: str | None,
    classes: int | None,
    overwrite: bool,
    **described: Any,
) -> None:
    """Write a job file with comments to start from.

    Its JSON schema for editors is written to the same folder; `mptj schema` prints the schema alone. On a terminal
    the command asks for what no option gives; elsewhere it reports what it assumed.
    """
    from mptraining.job_file.editor_schema import schema_text
    from mptraining.job_file.template import SCHEMA_FILE, Answers, job_text
    from mptraining_api.accelerators import canonical_name

    path = Path(file)
    refuse_existing(path, overwrite=overwrite)
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    assumed: list[str] = []
    if program is None:
        assumed.append("--program mlp")
        program = click.prompt("Program (an application, train.py, or module:function)", "mlp") if asks else "mlp"
    if accelerator is None:
        assumed.append("--accelerator cpu")
        accelerator = click.prompt("Accelerator (`mptj accelerators` lists them)", "cpu") if asks else "cpu"
    kind, program = _program(program)
    if kind != "script" and data is None:
        assumed.append(f"--data '{Answers.data}'")
        data = click.prompt("TFRecords to train on", Answers.data) if asks else Answers.data
    if classes is None:
        classes = _classes(kind, data, path, asks=asks)
        if classes is not None:
            assumed.append(f"--classes {classes}")
    answers = Answers(
        name=name or name_prefix(str(path)),
        kind=kind,
        program=program,
        accelerator=canonical_name(accelerator),
        data=data or Answers.data,
        classes=classes,
        **described,
    )
    write_in_one_step(path, job_text(answers))
    write_in_one_step(path.with_name(SCHEMA_FILE), schema_text())
    click.echo(f"wrote {path}, and {path.with_name(SCHEMA_FILE)} for editors")
    if assumed and not asks:
        note(
            f"note: no terminal to ask at; assumed: {' '.join(assumed)}. Edit {path}, or give "
            "other values with these options and --overwrite"
        )
    for text in _still_missing(path):
        click.echo(f"  still missing: {text}")
    click.echo(f"  mptj check {path}    explains its defaults\n  mptj run {path}      trains here")


def _still_missing(path: Path) -> list[str]:
    """Return what the new job names and is not there yet, such as its records."""
    from mptraining.job_file.checked_job import check_job_file
    from mptraining_api.validation.mistakes import InvalidJobFile

    try:
        check_job_file(path, here=True)
    except InvalidJobFile as error:
        return [str(mistake.problem) for mistake in error.mistakes]
    return []


@options.command()
@option("--sweep", is_flag=True, help="The schema of a sweep's file instead.")
def schema(sweep: bool) -> None:
    """Print the JSON schema of a job file, for editors.

    They complete and check YAML with it.
    """
    from mptraining.job_file.editor_schema import schema_text

    click.echo(schema_text(sweep=sweep), nl=False)


def _program(program: str) -> tuple[Kind, str]:
    """Return the kind of the program; an application with its name as Keras writes it. Raises InvalidSpec."""
    from mptraining_api.validation.keras_names import is_known, nearest_name

    kind = target_kind(program)
    if kind == "file":
        raise InvalidSpec("--program", f"{program!r}", expected="an application, a script (.py), or module:function")
    if kind != "application" or is_known("applications", program):
        return kind, program
    close = nearest_name("applications", program)
    if close is not None and close.lower() == program.lower():
        return kind, close
    hint = f"Did you mean {close!r}?" if close else "The names are those of keras.applications, mlp and cnn."
    raise InvalidSpec("--program", f"there is no application {program!r}", next_step=hint)


def _classes(kind: Kind, data: str | None, path: Path, *, asks: bool) -> int | None:
    """Return the number of classes if the data's manifest does not decide it."""
    from mptraining.job_file.data import names_classes

    if kind != "application" or names_classes(data or "", path.absolute().parent):
        return None
    return click.prompt("Number of classes", 10, type=int) if asks else 10


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise InvalidSpec if the file to write exists, unless it may be replaced."""
    if path.exists() and not overwrite:
        raise InvalidSpec(str(path), "exists", next_step="Choose another name, or replace it with --overwrite.")


def write_in_one_step(path: Path, text: str) -> None:
    """Write a file that a command makes: whole or not at all. Raises InvalidSpec with the file's name."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InvalidSpec(str(path), error.strerror or str(error)) from None
