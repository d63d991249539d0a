"""Command `mptj accelerators`: the catalogue as a table."""

from __future__ import annotations

from typing import Any

import click

from mptraining.cli import options
from mptraining.cli.output import columns, print_document

_HEADINGS = ("NAME", "ALSO", "KIND", "MEMORY", "AUTO POLICY", "POLICIES", "PER WORKER", "NODE LABELS", "WHAT")


@options.command()
@options.output_format("json", "yaml")
def accelerators(form: str | None) -> None:
    """List the accelerators, with their names in a job.

    ALSO are other names for --accelerator, with the value of GKE's node label, which jobs may have too. MEMORY is that
    of one device. AUTO POLICY is what precision.policy: Auto chooses. NODE LABELS are the platforms whose nodes the
    operator recognizes (its setting nodeLabels).
    """
    if form is not None:
        print_document(rows(), form)
        return
    shown = [tuple(_cell(value) for name, value in row.items() if name != "slices") for row in rows()]
    for line in columns([_HEADINGS, *shown]):
        click.echo(line)


def rows() -> list[dict[str, Any]]:
    """Return one row of plain values for each accelerator, in the order of the catalogue."""
    from mptraining_api.accelerators import catalogue
    from mptraining_api.machines.node_labels import accelerator_terms, platforms
    from mptraining_api.resolve.precision import automatic_policy

    return [
        {
            "name": each.name,
            "also": [*each.aliases, *([each.gke] if each.gke != each.name else [])],
            "kind": each.kind,
            "memoryGiB": each.memory_gib,
            "autoPolicy": automatic_policy(each)[0],
            "policies": list(each.policies),
            "perWorker": list(each.counts) or list(each.topologies)[:4],
            "slices": list(each.partitions),
            "nodeLabels": [
                name
                for name, platform in platforms().items()
                if each.kind != "cpu" and accelerator_terms(each, platform)
            ],
            "what": each.title,
        }
        for each in catalogue().values()
    ]


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else f"{value} GiB" if isinstance(value, int) else str(value)
