"""Parameters from the program: the hyperparameters that `build(hp)` of a function program declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def with_parameters_of_program(document: Mapping[str, Any], folder: Path) -> tuple[Mapping[str, Any], list[str]]:
    """placeholder"""
    return document, []
