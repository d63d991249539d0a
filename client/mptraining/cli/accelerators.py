"""Command `mptj accelerators`: the catalogue as a table."""

from __future__ import annotations

from typing import Any

from mptraining.cli import options
from mptraining.cli.output import print_document, print_table

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
    print_table([_HEADINGS, *shown])


def rows() -> list[dict[str, Any]]:
    """Return one row of plain values for each accelerator, in the order of the catalogue."""
    from mptraining_api.accelerators import catalogue
    from mptraining_api.machines.node_labels import accelerator_terms, platforms
    from mptraining_api.resolve.precision import automatic_policy

    return [
        {
            "name": accelerator.name,
            "also": [*accelerator.aliases, *([accelerator.gke] if accelerator.gke != accelerator.name else [])],
            "kind": accelerator.kind,
            "memoryGiB": accelerator.memory_gib,
            "autoPolicy": automatic_policy(accelerator)[0],
            "policies": list(accelerator.policies),
            "perWorker": list(accelerator.counts) or list(accelerator.topologies)[:4],
            "slices": list(accelerator.partitions),
            "nodeLabels": [
                name
                for name, platform in platforms().items()
                if accelerator.kind != "cpu" and accelerator_terms(accelerator, platform)
            ],
            "what": accelerator.title,
        }
        for accelerator in catalogue().values()
    ]


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else f"{value} GiB" if isinstance(value, int) else str(value)
