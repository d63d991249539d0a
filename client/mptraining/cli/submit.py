"""Command `mptj submit`: sends a job, a sweep or a program to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cloup import option

from mptraining.cli import options, program_flags
from mptraining.cli.jobs import wait_for_job, wait_for_sweep
from mptraining.cli.output import fields_named, note, print_document, print_objects
from mptraining.cli.program_flags import FIELDS, Flags, Target, takes_target, target_kind

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.packaging.package import Package


@options.command()
@takes_target("A job file, a sweep's file, train.py, train.ipynb, module:function, or an application.", on_cluster=True)
@option("--follow", is_flag=True, help="Follow the job to its end; exit with its exit code.")
@options.dry_run
@options.output_format("json", "yaml", "name")
@options.plain
@options.cluster_options
def submit(
    target: str, flags: Flags, follow: bool, dry_run: bool, form: str | None, plain: bool, cluster: Cluster
) -> int | None:
    """Send a job, sweep or program to a cluster.

    \b
    mptj submit job.yaml
    mptj submit train.py --accelerator t4 --count 4 -- --lr=0.1
    mptj submit flowers.model:build --data "gs://bucket/train-*" --epochs 5
    """
    from mptraining_api.validation.job_text import holds_sweep

    options.refuse_together(follow=follow, dry_run=dry_run)
    options.refuse_together(follow=follow, output=form)
    options.refuse_with("a job without --follow", plain=plain and not follow)
    kind = target_kind(target)
    if kind == "file":
        program_flags.refuse_flags_of_program(target, flags)
        if holds_sweep(target):
            options.refuse_with("a sweep, which has no other", plain=plain)
            return _submit_sweep(target, flags, cluster, follow=follow, dry_run=dry_run, form=form)
        return _submit_job(_read(target, flags), None, cluster, follow=follow, dry_run=dry_run, form=form, plain=plain)
    with fields_named(FIELDS):
        job, package = _program(target, kind, flags, is_named=dry_run)
        return _submit_job(job, package, cluster, follow=follow, dry_run=dry_run, form=form, plain=plain)


def _submit_job(
    job: dict[str, Any],
    package: Package | None,
    cluster: Cluster,
    *,
    follow: bool,
    dry_run: bool,
    form: str | None,
    plain: bool,
) -> int | None:
    from mptraining.cluster import submission

    for text in package.notes if package is not None else ():
        note(f"note: {text}")
    if dry_run:
        _print_objects(submission.check(job).document, package, form)
        return None
    sent = submission.submit(job, package=package, cluster=cluster)
    for warning in sent.warnings:
        note(f"advice: {warning}")
    if form is not None:
        print_objects([sent.status().document], form)
        return None
    click.echo(f"submitted: {sent.name} (namespace {sent.namespace})")
    if follow:
        return wait_for_job(sent, timeout=None, model=None, plain=plain)
    wait, status = (sent.server.command(verb, sent.name) for verb in ("wait", "status"))
    click.echo(f"  {wait}      follow it to the end\n  {status}    its phase, and the reason")
    return None


def _print_objects(job: dict[str, Any], package: Package | None, form: str | None) -> None:
    """Print the job with the ConfigMap of its code, as `kubectl apply` takes them."""
    from mptraining.cluster.submission import archive_uri

    objects = [job]
    if package is not None and package.small:
        name = f"{job['metadata']['name']}-source"
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "binaryData": package.binary_data(),
            "immutable": True,
        }
        job["spec"].setdefault("source", {}).update(package.source(config_map=name))
        objects = [config_map, job]
    elif package is not None:
        uri = archive_uri(job, package, None)
        job["spec"].setdefault("source", {}).update(package.source(uri=uri))
        note(f"note: the code has {package.size:,} bytes; `mptj submit` without --dry-run uploads it to {uri}")
    if form in ("json", "name"):
        print_objects(objects, form)
        return
    for number, made in enumerate(objects):
        if number:
            click.echo("---")
        print_document(made, "yaml")


def _submit_sweep(
    target: str, flags: Flags, cluster: Cluster, *, follow: bool, dry_run: bool, form: str | None
) -> int | None:
    from mptraining.sweeps.cluster import create_sweep
    from mptraining.sweeps.sweep_file import check_sweep_file
    from mptraining_api.resolve.resolve import ClusterSettings

    checked = check_sweep_file(Path(target), settings=lambda _: ClusterSettings())
    document = checked.sweep.to_document()
    if flags.run_folder:
        document["spec"]["job"]["output"] = {"uri": flags.run_folder}
    if dry_run:
        print_objects([document], form or "yaml")
        return None
    for text in checked.notes:
        note(f"note: {text}")
    sweep = create_sweep(document, cluster)
    if form is not None:
        print_objects([sweep.document()], form)
        return None
    click.echo(f"submitted: sweep {sweep.name} (namespace {sweep.server.namespace})")
    if follow:
        return wait_for_sweep(sweep)
    wait, status = (sweep.server.command(verb, f"mpts/{sweep.name}") for verb in ("wait", "sweep status"))
    click.echo(f"  {wait}           follow it to the end\n  {status}   its best trial")
    return None


def _read(target: str, flags: Flags) -> dict[str, Any]:
    """Return the job of a file. Raises InvalidJobFile."""
    from mptraining.job_file.checked_job import check_job_file
    from mptraining_api.resolve.resolve import ClusterSettings

    # The cluster decides what only some clusters accept.
    settings = ClusterSettings(node_labels="Auto")
    checked = check_job_file(Path(target), settings=lambda _: settings)
    for text in checked.notes:
        note(f"note: {text}")
    job = checked.written.to_document()
    if flags.run_folder:
        job["spec"]["output"] = {"uri": flags.run_folder}
    return job


def _program(target: str, kind: Target, flags: Flags, *, is_named: bool) -> tuple[dict[str, Any], Package | None]:
    """Return the job of a program, and the package of its code; `is_named`: it needs a name that is not generated."""
    program_flags.refuse_arguments(kind, flags)
    if kind == "application":
        options.refuse_with("an application, which has no code", requirements=flags.requirements, source=flags.source)
        name = program_flags.name_prefix(target) if is_named else None
        return program_flags.document(target, flags, program_flags.application(target, flags), name=name), None
    from mptraining.packaging import program
    from mptraining.packaging.keras_choice import with_keras

    folder = Path(flags.source) if flags.source else None
    requirements = Path(flags.requirements) if flags.requirements else None
    if kind == "script":
        package = program.ship_file(Path(target), folder=folder, requirements=requirements, arguments=flags.arguments)
    else:
        package = program.ship_entry_point(target, folder=folder, requirements=requirements)
    name = f"{program_flags.name_prefix(target)}-{package.sha256[:5]}" if is_named else None
    job, package, notes = with_keras(
        program_flags.document(target, flags, package.program, name=name), package, image=flags.image
    )
    for text in notes:
        note(f"note: {text}")
    return job, package
