"""Command `mptj convert-tfjob`: MPTrainingJobs from TFJobs, with what was decided and left out on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mptraining_api.problems import InvalidSpec


def convert_tfjob(
    file: Annotated[str, typer.Argument(help="YAML with one or several TFJobs.", metavar="FILE")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="File to write.", metavar="OUT")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Type that no nodeSelector names.", metavar="TYPE")] = None,
    script: Annotated[str | None, typer.Option(help="Python file that the command does not name.")] = None,
    image: Annotated[str | None, typer.Option(help="Image with the trainer and the code.")] = None,
    run_folder: Annotated[str | None, typer.Option(help="Folder for checkpoints and the model.", metavar="URI")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Field to leave out.", metavar="FIELD")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Convert Kubeflow's TFJobs into MPTrainingJobs.

    Every field is copied, decided, left out with a reason, or refused; nothing is written while a field is refused.
    """
    from mptraining.cli.init import write_in_one_step
    from mptraining.job_file.yaml_writer import to_yaml
    from mptraining.tfjob import Choices, convert_file
    from mptraining_api.accelerators import canonical_name

    if output is not None and not force and Path(output).exists():
        raise InvalidSpec(output, "exists", next_step="Choose another name, or replace it with --force.")
    chosen = canonical_name(accelerator) if accelerator else None
    converted = convert_file(Path(file), Choices(chosen, script, image, run_folder, tuple(without or ())))
    typer.echo("\n".join(line for job in converted for line in job.report()), err=True)
    text = "---\n".join(
        f"# From {Path(file).name}, by mptj convert-tfjob.\n{to_yaml(job.document)}" for job in converted
    )
    if output is None:
        return typer.echo(text, nl=False)
    write_in_one_step(Path(output), text)
    return typer.echo(f"wrote {output}\n  mptj check {output}    explains its defaults", err=True)
