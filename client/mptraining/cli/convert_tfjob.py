"""Command `mptj convert-tfjob`: MPTrainingJobs from TFJobs, with what was decided and left out on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import note
from mptraining.cli.shell import completion


@options.command("convert-tfjob")
@argument("file", metavar="FILE", help="YAML with one or several TFJobs.", shell_complete=completion.job_files)
@option("--to", metavar="FILE", help="File to write; default: standard output.")
@options.accelerator("Type that no nodeSelector names.")
@option("--script", metavar="FILE", help="Python file that the command does not name.")
@option("--image", metavar="IMAGE", help="Image with the trainer and the code.")
@option("--run-folder", metavar="FOLDER", help="Run folder, for checkpoints and the model.")
@option("--without", multiple=True, metavar="FIELD", help="Field to leave out; may be repeated.")
@options.overwrite
def convert_tfjob(file: str, to: str | None, accelerator: str | None, overwrite: bool, **given: Any) -> None:
    """Convert Kubeflow's TFJobs into MPTrainingJobs.

    Every field is copied, decided, left out with a reason, or refused; nothing is written while a field is refused.
    """
    from mptraining.cli.init import refuse_existing, write_in_one_step
    from mptraining.job_file.yaml_writer import to_yaml
    from mptraining.tfjob import Choices, convert_file
    from mptraining_api.accelerators import canonical_name

    if to is not None:
        refuse_existing(Path(to), overwrite=overwrite)
    chosen = canonical_name(accelerator) if accelerator else None
    converted = convert_file(Path(file), Choices(chosen, **given))
    note("\n".join(line for job in converted for line in job.report()))
    text = "---\n".join(
        f"# From {Path(file).name}, by mptj convert-tfjob.\n{to_yaml(job.document)}" for job in converted
    )
    if to is None:
        click.echo(text, nl=False)
        return
    write_in_one_step(Path(to), text)
    note(f"wrote {to}\n  mptj check {to}    explains its defaults")
