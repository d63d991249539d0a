"""MPTrainingJob document from the flags of `mptj submit` without a job file. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Literal

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, KIND

Target = Literal["file", "script", "function", "application"]
# A job's name has at most 50 characters; the API server appends 5 to `generateName`, after a hyphen.
_LONGEST_PREFIX = 44


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags of the command line that describe the job; None or () for flags that are not given."""

    name: str | None = None
    accelerator: str | None = None
    count: int | None = None
    topology: str | None = None
    workers: int | None = None
    spot: bool = False
    precision: str | None = None
    data: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    label: str | None = None
    classes: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    run_folder: str | None = None
    image: str | None = None
    requirements: str | None = None
    source: str | None = None
    arguments: tuple[str, ...] = ()

    def given_flags(self) -> list[str]:
        """Return the names of the flags that are given."""
        names = [each.name for each in fields(self) if getattr(self, each.name) not in (None, (), False)]
        return ["ARGUMENTS" if name == "arguments" else f"--{name.replace('_', '-')}" for name in names]


def target_kind(target: str) -> Target:
    """Classify TARGET: a job file, a script or notebook, `module:function`, or an application's name."""
    if target.endswith((".yaml", ".yml", ".json")):
        return "file"
    if target.endswith((".py", ".ipynb")):
        return "script"
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", target):
        return "function"
    if re.fullmatch(r"[A-Za-z]\w*", target):
        return "application"
    raise InvalidSpec(
        "TARGET",
        repr(target),
        expected="a job file (.yaml), a script (.py), a notebook (.ipynb), module:function, or an application's name",
    )


def document(target: str, flags: Flags, program: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job that trains `program` (the section `spec.program`) with these flags.

    Raises InvalidSpec for an unknown accelerator.
    """
    accelerator: dict[str, Any] = {"type": accelerators.canonical_name(flags.accelerator or "cpu")}
    accelerator |= _without_none(topology=flags.topology, countPerWorker=flags.count)
    if flags.spot:
        accelerator["provisioning"] = "Spot"
    spec: dict[str, Any] = {"accelerator": accelerator, **_without_none(workers=flags.workers)}
    if flags.precision:
        spec["precision"] = {"policy": flags.precision}
    spec["program"] = dict(program)
    if flags.data or flags.validation or flags.label:
        spec["data"] = {"train": list(flags.data)} | _without_none(
            validation=list(flags.validation) or None, label=flags.label
        )
    training = _without_none(epochs=flags.epochs)
    if flags.batch_size is not None:
        training["batchSize"] = {"perReplica": flags.batch_size}
    if training:
        spec["training"] = training
    if flags.run_folder:
        spec["output"] = {"uri": flags.run_folder}
    if flags.image:
        spec["podTemplate"] = {"image": flags.image}
    metadata = {"name": flags.name} if flags.name else {"generateName": f"{name_prefix(target)}-"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def application(target: str, flags: Flags) -> dict[str, Any]:
    """Return `spec.program` for an application, which is a model by name."""
    return {"application": {"name": target, **_without_none(classes=flags.classes)}}


def name_prefix(target: str) -> str:
    """Return the prefix for `generateName`: `train` for `code/train.py`, `build` for `flowers.model:build`."""
    stem = PurePosixPath(target.rpartition(":")[2]).stem
    found = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_LONGEST_PREFIX].strip("-")
    return found if re.match(r"[a-z]", found) else f"job-{found}".strip("-")[:_LONGEST_PREFIX]


def refuse_flags_with_file(target: str, flags: Flags, arguments: Sequence[str] = ()) -> None:
    """Raise InvalidSpec if flags are given with a job file, which they could contradict."""
    given = [*flags.given_flags(), *arguments]
    if given:
        raise InvalidSpec(
            target,
            f"is a complete job file; it cannot be combined with {', '.join(given)}",
            next_step="Write it into the file.",
        )


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
