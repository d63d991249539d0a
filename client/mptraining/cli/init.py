"""Command `mptj init`: a new job file from flags, or from questions on a terminal; `mptj schema`: for editors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.job_file.template import Kind


def init(
    file: Annotated[str, typer.Argument(help="The file to write.", metavar="FILE")] = "job.yaml",
    program: Annotated[
        str | None,
        typer.Option(
            help="An application (ResNet50, mlp, …), a script (train.py), or module:function.",
            metavar="PROGRAM",
            autocompletion=completion.targets,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The job's name; default: FILE's.", metavar="NAME")] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            help="cpu, t4, v100, …: `mptj accelerators`.", metavar="TYPE", autocompletion=completion.accelerators
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="TFRecords to train on.", metavar="PATTERN")] = None,
    validation: Annotated[str | None, typer.Option(help="TFRecords to validate with.", metavar="PATTERN")] = None,
    label: Annotated[str | None, typer.Option(help="The feature that is the label.", metavar="NAME")] = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes of an application.", min=1, metavar="N")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train.", min=1, metavar="N")] = 5,
    batch_size: Annotated[int, typer.Option(help="Examples per step over all replicas.", min=1, metavar="N")] = 64,
    run_folder: Annotated[str | None, typer.Option(help="Folder for checkpoints and the model.", metavar="URI")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a job file with comments, and its JSON schema for editors beside it.

    On a terminal it asks for what no flag gives; elsewhere it names what it assumed. `mptj schema` prints the schema
    alone.
    """
    from mptraining.job_file.template import SCHEMA_FILE, Answers, job_text
    from mptraining_api.accelerators import canonical_name

    path = Path(file)
    if path.exists() and not force:
        raise InvalidSpec(file, "exists", next_step="Choose another name, or replace it with --force.")
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    assumed: list[str] = []
    if program is None:
        assumed.append("--program mlp")
        program = typer.prompt("Program (an application, train.py, or module:function)", "mlp") if asks else "mlp"
    if accelerator is None:
        assumed.append("--accelerator cpu")
        accelerator = typer.prompt("Accelerator (`mptj accelerators` lists them)", "cpu") if asks else "cpu"
    kind, program = _program(program)
    if kind != "script" and data is None:
        assumed.append(f"--data '{Answers.data}'")
        data = typer.prompt("TFRecords to train on", Answers.data) if asks else Answers.data
    if classes is None:
        classes = _classes(kind, data, path, asks=asks)
        if classes is not None:
            assumed.append(f"--classes {classes}")
    answers = Answers(
        name=name or _name(path),
        kind=kind,
        program=program,
        accelerator=canonical_name(accelerator),
        data=data or Answers.data,
        validation=validation,
        label=label,
        classes=classes,
        epochs=epochs,
        batch_size=batch_size,
        run_folder=run_folder,
    )
    write_in_one_step(path, job_text(answers))
    write_in_one_step(path.with_name(SCHEMA_FILE), schema_text())
    typer.echo(f"wrote {path}, and {path.with_name(SCHEMA_FILE)} for editors")
    if assumed and not asks:
        typer.echo(
            f"note: no terminal to ask at; assumed: {' '.join(assumed)}. Edit {path}, or give "
            "other values with these options and --force",
            err=True,
        )
    for each in _still_missing(path):
        typer.echo(f"  still missing: {each}")
    typer.echo(f"  mptj check {path}    explains its defaults\n  mptj run {path}      trains here")


def _still_missing(path: Path) -> list[str]:
    """Return what the new job names and is not there yet, such as its records."""
    from mptraining.job_file.check import check_job_file
    from mptraining_api.validation.mistakes import InvalidJobFile

    try:
        check_job_file(path, here=True)
    except InvalidJobFile as error:
        return [str(each.problem) for each in error.mistakes]
    return []


def schema(
    sweep: Annotated[bool, typer.Option("--sweep", help="The schema of a sweep's file instead.")] = False,
) -> None:
    """Print the JSON schema of a job file, for editors that complete and check YAML."""
    typer.echo(schema_text(sweep=sweep), nl=False)


def schema_text(*, sweep: bool = False) -> str:
    """Return the JSON schema of a job file, or of a sweep's file."""
    from mptraining.job_file.editor_schema import sweep_to_json, to_json

    return sweep_to_json() if sweep else to_json()


def _program(program: str) -> tuple[Kind, str]:
    """Return the kind of the program; an application with its name as Keras writes it. Raises InvalidSpec."""
    from mptraining.cli.submit_flags import target_kind
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
    return typer.prompt("Number of classes", 10, type=int) if asks else 10


def _name(path: Path) -> str:
    from mptraining.cli.submit_flags import name_prefix

    return name_prefix(str(path))


def write_in_one_step(path: Path, text: str) -> None:
    """Write a file that a command makes: whole or not at all. Raises InvalidSpec with the file's name."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InvalidSpec(str(path), error.strerror or str(error)) from None
