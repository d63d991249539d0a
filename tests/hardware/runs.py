"""Machines and results as the tests need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hardware.cells import Cell, Policy
from hardware.machine import Machine
from hardware.results import Results, Round

CPU = Machine("cpu", "Xeon", "cpu", 2, None, "Xeon", 2, 24 * 2**30, "2.21.0", "3.15.1")
GPU = replace(CPU, kind="gpu", device="Tesla V100", accelerator="nvidia-tesla-v100", count=8, capability=7.0)
TPU = replace(CPU, kind="tpu", device="TPU v5e", accelerator="tpu-v5-lite-podslice", count=1)


def results(machine: Machine = GPU) -> Results:
    return Results(machine, "small" if machine.kind == "cpu" else "full", "2026-11-24")


def measured(found: Results, cell: Cell, number: int = 0, seconds: float = 10.0, **values: Any) -> Results:
    return found.with_round(Round(cell.key, number, "measured", seconds, values=values))


def out_of_memory(found: Results, cell: Cell) -> Results:
    return found.with_round(Round(cell.key, 0, "out of memory", 10.0, "OOM when allocating tensor"))


def cell(found: Results, section: str, **fields: Any) -> Cell:
    return next(
        turn.cell
        for turn in found.turns()
        if turn.cell.section == section and all(getattr(turn.cell, name) == value for name, value in fields.items())
    )


def memory(found: Results, policy: Policy, batch: int) -> Cell:
    return cell(found, "memory", policy=policy, batch=batch)
