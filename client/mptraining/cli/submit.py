"""Command `mptj submit`: submits a job file, or a program with flags, to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptraining.cli.jobs import Format, OutputFormat, Plain, follow_until_ended, print_documents
from mptraining.cli.shell import completion

if TYPE_CHECKING:
    from mptraining.cli.submit_flags import Flags
    from mptraining.cluster.connection import Cluster
    from mptraining.packaging.package import Package


def submit(
    target: Annotated[
        str,
        typer.Argument(
            help="Job file, script, notebook, module:function, or application.",
            metavar="TARGET",
            autocompletion=completion.targets,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of a script; after -- if they begin with a dash.", metavar="[ARGUMENTS]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The job's name; default: generated from TARGET.", metavar="NAME")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            help="cpu, t4, v100, …: `mptj accelerators`.", metavar="TYPE", autocompletion=completion.accelerators
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Accelerators of each worker.", min=1, metavar="N")] = None,
    topology: Annotated[str | None, typer.Option(help="Topology of a TPU, such as 2x4.", metavar="AxB")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker pods.", min=1, metavar="N")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Use Spot machines, which may be preempted.")] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Auto, float32, mixed_float16, mixed_bfloat16.", metavar="POLICY", autocompletion=completion.policies
        ),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="TFRecords to train on; may be repeated.", metavar="PATTERN")
    ] = None,
    validation: Annotated[list[str] | None, typer.Option(help="TFRecords to validate with.", metavar="PATTERN")] = None,
    label: Annotated[str | None, typer.Option(help="The feature that is the label.", metavar="NAME")] = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes of an application.", min=1, metavar="N")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs to train.", min=1, metavar="N")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples per step on each replica.", min=1, metavar="N")
    ] = None,
    run_folder: Annotated[str | None, typer.Option(help="Folder for checkpoints and the model.", metavar="URI")] = None,
    image: Annotated[
        str | None, typer.Option(help="Container image instead of the operator's default.", metavar="IMAGE")
    ] = None,
    requirements: Annotated[str | None, typer.Option(help="A requirements file.", metavar="FILE")] = None,
    source: Annotated[str | None, typer.Option(help="Folder to package with the program.", metavar="FOLDER")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the job; exit with its exit code.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job; submit nothing.")] = False,
    output: OutputFormat = None,
    plain: Plain = False,
    *,
    cluster: Cluster,
) -> None:
    """Submit a job to the cluster: a job file, a sweep's file, or a program with flags.

    mptj submit job.yaml

    mptj submit train.py --accelerator t4 --count 4 -- --lr=0.1

    mptj submit flowers.model:build --data "gs://bucket/train-*" --epochs 5
    """
    from mptraining.cli import submit_flags
    from mptraining.cli.submit_flags import Flags
    from mptraining.cluster import submit as cluster_submit
    from mptraining_api.validation.job_text import holds_sweep

    flags = Flags(
        name=name,
        accelerator=accelerator,
        count=count,
        topology=topology,
        workers=workers,
        spot=spot,
        precision=precision,
        data=tuple(data or ()),
        validation=tuple(validation or ()),
        label=label,
        classes=classes,
        epochs=epochs,
        batch_size=batch_size,
        run_folder=run_folder,
        image=image,
        requirements=requirements,
        source=source,
        arguments=tuple(arguments or ()),
    )
    if submit_flags.target_kind(target) == "file" and holds_sweep(target):
        submit_flags.refuse_flags_with_file(target, flags)
        _submit_sweep(target, cluster, follow=follow, dry_run=dry_run, output=output)
        return
    document, package = _document(target, flags)
    notes = list(package.notes) if package is not None else []
    if package is not None:
        from mptraining.packaging.keras_choice import with_keras

        document, package, about_keras = with_keras(document, package, image=image)
        notes += about_keras
    if dry_run:
        print_documents([cluster_submit.check(document).document], output or Format.YAML, many=False)
        return
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    job = cluster_submit.submit(document, package=package, cluster=cluster)
    for warning in job.warnings:
        typer.echo(f"advice: {warning}", err=True)
    if output is not None:
        print_documents([job.status().document], output, many=False)
    else:
        typer.echo(f"submitted: {job.name} (namespace {job.namespace})")
    if follow:
        follow_until_ended(job, timeout=None, model=None, plain=plain)
    elif output is None:
        wait, status = (job.server.command(verb, job.name) for verb in ("wait", "status"))
        typer.echo(f"  {wait}      follow it to the end\n  {status}    its phase, and the reason")


def _submit_sweep(target: str, cluster: Cluster, *, follow: bool, dry_run: bool, output: Format | None) -> None:
    from mptraining.cli.sweep import follow_sweep
    from mptraining.sweeps.cluster import create_sweep
    from mptraining.sweeps.sweep_file import check_sweep_file
    from mptraining_api.resolve.resolve import ClusterSettings

    checked = check_sweep_file(Path(target), settings=lambda _: ClusterSettings())
    document = checked.sweep.to_document()
    if dry_run:
        print_documents([document], output or Format.YAML, many=False)
        return
    for note in checked.notes:
        typer.echo(f"note: {note}", err=True)
    sweep = create_sweep(document, cluster)
    if output is not None:
        print_documents([sweep.document()], output, many=False)
    else:
        typer.echo(f"submitted: sweep {sweep.name} (namespace {sweep.server.namespace})")
    if follow:
        follow_sweep(sweep)
    elif output is None:
        wait, status = (sweep.server.command(verb, f"mpts/{sweep.name}") for verb in ("wait", "sweep status"))
        typer.echo(f"  {wait}           follow it to the end\n  {status}   its best trial")


def _document(target: str, flags: Flags) -> tuple[dict[str, Any], Package | None]:
    """Return the job document, and the package of its program if there is one. Raises Problem."""
    from mptraining.cli import submit_flags
    from mptraining.job_file.check import check_job_file
    from mptraining_api.problems import InvalidSpec
    from mptraining_api.resolve.resolve import ClusterSettings

    kind = submit_flags.target_kind(target)
    if kind == "file":
        submit_flags.refuse_flags_with_file(target, flags)
        # The cluster decides what only some clusters accept.
        settings = ClusterSettings(node_labels="Auto")
        checked = check_job_file(Path(target), settings=lambda _: settings)
        for note in checked.notes:
            typer.echo(f"note: {note}", err=True)
        return checked.written.to_document(), None
    if kind != "script" and flags.arguments:
        raise InvalidSpec("ARGUMENTS", repr(flags.arguments[0]), expected="a script for arguments")
    if kind == "application":
        return submit_flags.document(target, flags, submit_flags.application(target, flags)), None
    from mptraining.packaging import program

    folder = Path(flags.source) if flags.source else None
    requirements = Path(flags.requirements) if flags.requirements else None
    if kind == "script":
        package = program.ship_file(Path(target), folder=folder, requirements=requirements, arguments=flags.arguments)
    else:
        package = program.ship_entry_point(target, folder=folder, requirements=requirements)
    return submit_flags.document(target, flags, package.program), package
