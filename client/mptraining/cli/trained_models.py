"""Command `mptj predict`: predictions of a trained model, here or on a cluster."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptraining.cli.jobs import Format, Plain, follow_until_ended, print_documents
from mptraining.cli.shell import completion
from mptraining_api.problems import Place, Problem

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster

# Fields of the job that `mptj predict` makes, and the arguments that they are of.
_ARGUMENTS = {
    "spec.data.predict": "RECORDS",
    "spec.program.prediction.model": "MODEL",
    "spec.program.prediction.to": "--to",
    "spec.program.prediction.key": "--key",
    "spec.program.prediction.batchSize": "--batch-size",
    "spec.program.prediction.evaluate": "--evaluate",
    "spec.accelerator.type": "--accelerator",
    "spec.workers": "--workers",
}
# The run folder of a prediction beside its file; deleted when the file is complete.
_RUN = ".run"


def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="Run folder, its model/, a .keras file, or the folder of a SavedModel.",
            metavar="MODEL",
            autocompletion=completion.run_folders,
        ),
    ],
    records: Annotated[list[str], typer.Argument(help="TFRecord files; wildcards allowed.", metavar="RECORDS...")],
    to: Annotated[str, typer.Option("--to", help="Parquet file to write, a path or gs://.", metavar="FILE")],
    key: Annotated[
        str | None,
        typer.Option(help="Feature that identifies a record, instead of file and record.", metavar="FEATURE"),
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Print loss and metrics; needs labels.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Records per step on each replica.", min=1, metavar="N")
    ] = None,
    skip_bad: Annotated[
        int | None, typer.Option("--skip-bad", help="Skip at most N bad records.", min=1, metavar="N")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Job file whose data section describes the records.", metavar="FILE")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            help="cpu, t4, v100, …; default: that of the model's run.",
            metavar="TYPE",
            autocompletion=completion.accelerators,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes here, pods in a cluster.", min=1, metavar="N")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Predict on the cluster, as a job.")] = False,
    name: Annotated[str | None, typer.Option(help="The job's name.", metavar="NAME")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job; predict nothing.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With --submit: follow the job.")] = False,
    plain: Plain = False,
    *,
    cluster: Cluster,
) -> None:
    """Predict with a trained model: a row for each record, in order, in a Parquet file.

    mptj predict runs/flowers "records/test-*.tfrecord" --to predictions.parquet

    mptj predict gs://bucket/flowers "gs://bucket/test-*" --to gs://bucket/predictions.parquet --submit --workers 4

    The same command continues an interrupted prediction.
    """
    from mptraining.job_file.paths import absolute_path
    from mptraining.prediction_job import accelerator_of, prediction_document
    from mptraining_api.accelerators import canonical_name

    def located(path: str) -> str:
        # The paths of a job are those of its pods.
        return path if submit else absolute_path(path, Path.cwd())

    target = located(to)
    # Problems of the job file keep its fields.
    data = _data_section(job) if job is not None else None
    with _named_by_argument():
        document = prediction_document(
            located(model),
            [located(each) for each in records],
            name=name,
            accelerator={"type": canonical_name(accelerator)} if accelerator else accelerator_of(model),
            workers=workers,
            prediction={"to": target, "key": key, "batchSize": batch_size, "evaluate": evaluate or None},
            data=data,
            skip_bad=skip_bad,
            output=f"{target}{_RUN}",
        )
        if dry_run:
            from mptraining.cluster.submit import check

            print_documents([check(document).document], Format.YAML, many=False)
        elif submit:
            _submit(document, cluster, follow=follow, plain=plain)
        else:
            _predict_here(document, target, plain=plain)


def _submit(document: dict[str, Any], cluster: Cluster, *, follow: bool, plain: bool) -> None:
    from mptraining.cluster.submit import submit

    sent = submit(document, cluster=cluster)
    for warning in sent.warnings:
        typer.echo(f"advice: {warning}", err=True)
    typer.echo(f"submitted: {sent.name} (namespace {sent.namespace})")
    if follow:
        follow_until_ended(sent, timeout=None, model=None, plain=plain)
    else:
        typer.echo(f"  {sent.server.command('wait', sent.name)}      follow it to the end")


def _predict_here(document: dict[str, Any], target: str, *, plain: bool) -> None:
    from mptraining.display.choice import display_here
    from mptraining.local.run import LocalRunner, resolve_for_machine, this_machine
    from mptraining.prediction_job import stored_prediction
    from mptraining_api import run_folder
    from mptraining_storage import storage

    folder = document["spec"]["output"]["uri"]
    path = Path.cwd() / "predict"
    if storage.exists(storage.join(folder, run_folder.RESULT)):
        # Of a command that ended after its file was complete.
        storage.delete_prefix(folder)
    elif (before := stored_prediction(folder)) is not None:
        job, _ = resolve_for_machine(path, document=document, output=None, machine=this_machine())
        if run_folder.difference(before, job) is not None:
            # Of a command with other arguments, such as a wrong --key.
            storage.delete_prefix(folder)
    runner = LocalRunner(
        again=shlex.join(["mptj", *_given()]),
        named=argument,
    )
    if code := runner.run(document, display_here(plain=plain)).exit_code:
        raise typer.Exit(code)
    storage.delete_prefix(folder)
    typer.echo(f"predictions: {target}")
    typer.echo(f"next: pyarrow.parquet.read_table({target!r})")


@contextmanager
def _named_by_argument() -> Iterator[None]:
    """In the block, name the fields of the prediction's job by the command's arguments in the problems raised."""
    try:
        yield
    except Problem as problem:
        raise problem.renamed(argument) from None


def argument(place: Place) -> str | Place:
    """Return the argument of `mptj predict` that sets a field of its job; the place itself for another one."""
    return _ARGUMENTS.get(re.sub(r"\[\d+\]$", "", str(place)), place)


def _given() -> list[str]:
    """Return the arguments of this process, for the line that says how to continue."""
    return sys.argv[1:]


def _data_section(file: str) -> dict[str, Any]:
    """Return the data section of a job file. Raises InvalidSpec."""
    from mptraining_api.problems import InvalidSpec
    from mptraining_api.spec import MPTrainingJob

    data = MPTrainingJob.load(Path(file)).spec.data
    if data is None:
        raise InvalidSpec("--job", f"{file} has no data section")
    return data.to_document()
