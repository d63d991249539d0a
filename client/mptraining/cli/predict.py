"""Command `mptj predict`: predictions of a trained model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from cloup import argument, option

from mptraining.cli import options
from mptraining.cli.output import fields_named, named, print_document, typed_command
from mptraining.cli.shell import completion

# Fields of the job that `mptj predict` makes, and the arguments that set them.
_FIELDS = {
    "spec.data.predict": "RECORDS",
    "spec.program.prediction.model": "MODEL",
    "spec.program.prediction.to": "--to",
    "spec.program.prediction.key": "--key",
    "spec.program.prediction.batchSize": "--batch-size-per-replica",
    "spec.program.prediction.evaluate": "--evaluate",
    "spec.accelerator.type": "--accelerator",
    "spec.workers": "--workers",
}
# The run folder of a prediction beside its file; deleted when the file is complete.
_RUN = ".run"


@options.command()
@options.runs_argument("model", "MODEL", "Run folder, its model/, a .keras file, or the folder of a SavedModel.")
@argument("records", nargs=-1, required=True, metavar="RECORDS...", help="TFRecord files; wildcards allowed.")
@option("--to", required=True, metavar="FILE", help="Parquet file to write, a path or gs://.")
@option("--key", metavar="FEATURE", help="Feature that identifies a record, instead of file and record.")
@option("--evaluate", is_flag=True, help="Print loss and metrics; needs labels.")
@options.count("--batch-size-per-replica", "Records per step on each replica.")
@options.count("--skip-bad", "Skip at most N bad records.")
@option(
    "--job",
    metavar="FILE",
    shell_complete=completion.job_files,
    help="Job file whose data section describes the records.",
)
@options.accelerator("cpu, t4, v100, …; default: that of the model's run.")
@options.count("--workers", "Workers: processes here, pods on a cluster.")
@option("--name", metavar="NAME", help="The job's name.")
@options.dry_run
@options.plain
def predict(
    model: str,
    records: tuple[str, ...],
    to: str,
    key: str | None,
    evaluate: bool,
    batch_size_per_replica: int | None,
    skip_bad: int | None,
    job: str | None,
    accelerator: str | None,
    workers: int | None,
    name: str | None,
    dry_run: bool,
    plain: bool,
) -> int | None:
    """Predict with a trained model, to a Parquet file.

    The file has a row for each record, in order. The same command continues an interrupted prediction. On a cluster,
    print the job with --dry-run, and submit it.

    \b
    mptj predict runs/flowers "records/test-*.tfrecord" --to predictions.parquet
    mptj predict gs://b/flowers "gs://b/test-*" --to gs://b/all.parquet --dry-run > predict.yaml
    mptj submit predict.yaml --follow
    """
    from mptraining.job_file.paths import absolute_path
    from mptraining.prediction_job import accelerator_of, prediction_document
    from mptraining_api.accelerators import canonical_name

    def located(path: str) -> str:
        # The paths of a job that is only printed are those of its file, or of its pods.
        return path if dry_run else absolute_path(path, Path.cwd())

    options.refuse_with("--dry-run", plain=plain and dry_run)
    target = located(to)
    # Problems of the job file keep its fields.
    data = _data_section(job) if job is not None else None
    with fields_named(_FIELDS):
        document = prediction_document(
            located(model),
            [located(pattern) for pattern in records],
            name=name,
            accelerator={"type": canonical_name(accelerator)} if accelerator else accelerator_of(model),
            workers=workers,
            prediction={"to": target, "key": key, "batchSize": batch_size_per_replica, "evaluate": evaluate or None},
            data=data,
            skip_bad=skip_bad,
            output=f"{target}{_RUN}",
        )
        if not dry_run:
            return _predict_here(document, target, plain=plain)
        from mptraining.cluster.submission import check

        print_document(check(document).document, "yaml")
    return None


def _predict_here(document: dict[str, Any], target: str, *, plain: bool) -> int:
    from mptraining.display.choice import display_here
    from mptraining.local.runner import LocalRunner, resolve_for_machine, this_machine
    from mptraining.prediction_job import stored_prediction
    from mptraining_api import run_folder
    from mptraining_storage import storage

    folder = document["spec"]["output"]["uri"]
    path = Path.cwd() / "predict"
    if storage.exists(storage.join(folder, run_folder.RESULT)):
        # An earlier command ended after its file was complete.
        storage.delete_prefix(folder)
    elif (before := stored_prediction(folder)) is not None:
        job, _ = resolve_for_machine(path, document=document, output=None, machine=this_machine())
        if run_folder.difference(before, job) is not None:
            # An earlier command had other arguments, such as a wrong --key.
            storage.delete_prefix(folder)
    runner = LocalRunner(again=typed_command(), named=partial(named, _FIELDS))
    if code := runner.run(document, display_here(plain=plain)).exit_code:
        return code
    storage.delete_prefix(folder)
    click.echo(f"predictions: {target}\nnext: pyarrow.parquet.read_table({target!r})")
    return 0


def _data_section(file: str) -> dict[str, Any]:
    """Return the data section of a job file. Raises InvalidSpec."""
    from mptraining_api.problems import InvalidSpec
    from mptraining_api.spec import MPTrainingJob

    data = MPTrainingJob.load(Path(file)).spec.data
    if data is None:
        raise InvalidSpec("--job", f"{file} has no data section")
    return data.to_document()
