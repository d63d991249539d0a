"""Command `mptj convert-tfjob`: an MPTrainingJob from a TFJob, with the list of what became of each field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec

if TYPE_CHECKING:
    from mptraining.tfjob.convert import Conversion


def convert_tfjob(
    file: Annotated[str, typer.Argument(help="YAML with one or several TFJobs.", metavar="FILE")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The file to write; default: standard output.", metavar="OUT")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            help="t4, v100, …, where no nodeSelector names it: `mptj accelerators`.",
            metavar="TYPE",
            autocompletion=completion.accelerators,
        ),
    ] = None,
    script: Annotated[
        str | None, typer.Option(help="The Python file that trains, where the command does not name one.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="An image with the trainer and the code, instead of the operator's.")
    ] = None,
    run_folder: Annotated[
        str | None,
        typer.Option(
            help="Folder for checkpoints and the model; of several jobs, each in one of its name.", metavar="URI"
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A field that has no counterpart, to leave out.", metavar="FIELD")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Convert Kubeflow's TFJobs into MPTrainingJobs.

    Every field is carried over, decided, left out with a reason, or refused: the list is on standard error, and
    nothing is written while a field is refused.
    """
    from mptraining.cli.init import write_in_one_step
    from mptraining.job_file.yaml_writer import to_yaml
    from mptraining.tfjob.convert import convert_file
    from mptraining.tfjob.replica import Choices
    from mptraining_api.accelerators import canonical_name

    if output is not None and not force and Path(output).exists():
        raise InvalidSpec(output, "exists", next_step="Choose another name, or replace it with --force.")
    chosen = canonical_name(accelerator) if accelerator else None
    found, beside = convert_file(Path(file), Choices(chosen, script, image, run_folder), without=without or ())
    text = "---\n".join(f"{_heading(each, file)}{to_yaml(each.document)}" for each in found)
    for each in found:
        typer.echo("\n".join(report_lines(each)), err=True)
    for line in beside:
        typer.echo(f"{file}, {line}", err=True)
    if output is None:
        typer.echo(text, nl=False)
        return
    write_in_one_step(Path(output), text)
    typer.echo(f"wrote {output}\n  mptj check {output}    explains its defaults", err=True)


def _heading(conversion: Conversion, file: str) -> str:
    return f"# From the TFJob {conversion.name} in {Path(file).name}, by `mptj convert-tfjob`.\n"


def report_lines(conversion: Conversion) -> Iterator[str]:
    """Yield what became of the fields, in the order of the TFJob's lines."""
    source = conversion.source
    yield f"{source.file}: TFJob {conversion.name}"
    if conversion.carried:
        from mptraining_api.validation.mistakes import field_text

        pairs = [(source.line(field_text(each.source)), field_text(each.source), each) for each in conversion.carried]
        yield from _section("carried over", [(line, f"{name} -> {each.target}") for line, name, each in pairs])
    yield from _section("decided", [(None, f"{each.where}: {each.reason}") for each in conversion.decided])
    left = [(source.line(each.where), f"{each.where}: {each.reason}") for each in conversion.left_out]
    yield from _section("left out", left)


def _section(title: str, entries: Sequence[tuple[int | None, str]]) -> Iterator[str]:
    if not entries:
        return
    yield f"  {title}"
    for line, text in sorted(entries, key=lambda each: each[0] or 0):
        yield f"    {text}" if line is None else f"    line {line}: {text}"
