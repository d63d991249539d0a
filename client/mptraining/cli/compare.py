"""Command `mptj compare`: runs side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from cloup import option

from mptraining.cli import options
from mptraining.cli.board import write_page
from mptraining.cli.jobs import attach_job
from mptraining.cli.output import print_document, without_limit

if TYPE_CHECKING:
    from mptraining.cluster.connection import Cluster
    from mptraining.comparison import Comparison


@options.command()
@options.runs_argument(
    "runs", "RUN...", "Run folders (with a slash: ./NAME), gs:// URIs, or jobs.", nargs=-1, required=True
)
@option("--metric", multiple=True, metavar="NAME", help="Compare this metric; may be repeated.")
@option("--sort", metavar="COLUMN", help="Order the runs by this column, the best first.")
@option("--to", metavar="FILE", help="Write one offline page with the curves, too.")
@options.output_format("json", "yaml")
@options.cluster_options
def compare(
    runs: tuple[str, ...], metric: tuple[str, ...], sort: str | None, to: str | None, form: str | None, cluster: Cluster
) -> None:
    """Show runs side by side.

    Each run is a column, or a row if there are many. Green marks the best values; values within 1 % of the best one are
    ties.
    """
    from mptraining.comparison.compared import TEXT_WIDTH, table

    comparison = compare_runs(runs, cluster, metrics=metric or None, sort=sort)
    if to is not None:
        write_page(to, list(runs), cluster)
    if form is not None:
        print_document(comparison.to_document(), form)
        return
    from rich.console import Console

    console = Console(highlight=False)
    width = console.width if console.is_terminal or os.environ.get("COLUMNS") else TEXT_WIDTH
    without_limit(console).print(table(comparison, width))
    for text in comparison.notes:
        click.echo(f"note: {text}")
    if to is not None:
        click.echo(f"page: {to}")


def compare_runs(
    runs: Sequence[str], cluster: Cluster, *, metrics: Sequence[str] | None = None, sort: str | None = None
) -> Comparison:
    """Compare run folders and jobs. Raises Problem."""
    from mptraining.comparison import compare

    named = [run if options.names_folder(run) else attach_job(run, cluster) for run in runs]
    return compare(named, metrics=metrics, sort=sort)
