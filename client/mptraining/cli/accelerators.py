"""Command `mptj accelerators`: the catalogue as a table."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mptraining.cli.jobs import columns

_HEADINGS = ("NAME", "ALSO", "KIND", "MEMORY", "AUTO POLICY", "POLICIES", "PER WORKER", "NODE LABELS", "WHAT")


def accelerators(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the accelerators: names, memory, precision policies, machines.

    ALSO are other names for --accelerator, with the value of GKE's node label, which jobs may have too. MEMORY is that
    of one device. AUTO POLICY is what precision.policy: Auto chooses. NODE LABELS are the platforms whose nodes the
    operator recognizes (its setting nodeLabels).
    """
    found = rows()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    shown = [tuple(_cell(value) for name, value in row.items() if name != "slices") for row in found]
    for line in columns([_HEADINGS, *shown]):
        typer.echo(line)


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
