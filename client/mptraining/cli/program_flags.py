"""Options of `mptj run` and `mptj submit` that describe the job of a program, and the MPTrainingJob that they make."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Literal

import click
from cloup import argument, option

from mptraining.cli.options import accelerator, choice, count, refuse_together
from mptraining.cli.shell import completion
from mptraining_api.problems import InvalidSpec
from mptraining_api.validation.api_versions import API_VERSION
from mptraining_api.validation.job_text import KIND

Target = Literal["file", "script", "function", "application"]
# A job's name has at most 50 characters; the API server appends 5 to `generateName`, after a hyphen.
_LONGEST_PREFIX = 44
_POLICIES = {policy.lower(): policy for policy in ("Auto", "Measure", "float32", "mixed_float16", "mixed_bfloat16")}

# The options that set fields of the job.
FIELDS = {
    "metadata.name": "--name",
    "metadata.generateName": "--name",
    "spec.accelerator.type": "--accelerator",
    "spec.accelerator.countPerWorker": "--count",
    "spec.accelerator.topology": "--topology",
    "spec.accelerator.provisioning": "--spot",
    "spec.workers": "--workers",
    "spec.precision.policy": "--precision",
    "spec.program.application.name": "TARGET",
    "spec.program.application.classes": "--classes",
    "spec.program.function.entryPoint": "TARGET",
    "spec.program.script.path": "TARGET",
    "spec.data": "--data",
    "spec.data.train": "--data",
    "spec.data.validation": "--validation",
    "spec.data.label": "--label",
    "spec.training": "--epochs",
    "spec.training.epochs": "--epochs",
    "spec.training.batchSize.global": "--batch-size",
    "spec.training.batchSize.perReplica": "--batch-size-per-replica",
    "spec.output.uri": "--run-folder",
    "spec.podTemplate.image": "--image",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of a command line that describe the job; None or () for those that are not given."""

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
    batch_size_per_replica: int | None = None
    run_folder: str | None = None
    image: str | None = None
    requirements: str | None = None
    source: str | None = None
    arguments: tuple[str, ...] = ()


_OPTIONS = (
    option("--name", metavar="NAME", help="The job's name; default: made from TARGET."),
    accelerator("cpu, t4, v100, …: see `mptj accelerators`; default: cpu."),
    count("--count", "Accelerators of each worker."),
    count("--workers", "Workers: processes here, pods on a cluster."),
    option(
        "--precision",
        type=choice(*_POLICIES),
        metavar="POLICY",
        help="auto, measure, float32, mixed_float16 or mixed_bfloat16; default: auto.",
    ),
    option("--data", multiple=True, metavar="PATTERN", help="TFRecords to train on; may be repeated."),
    option("--validation", multiple=True, metavar="PATTERN", help="TFRecords to validate with."),
    option("--label", metavar="NAME", help="The feature that is the label."),
    count("--classes", "Number of classes of an application."),
    count("--epochs", "Epochs to train."),
    count("--batch-size", "Examples per step, over all replicas."),
    count("--batch-size-per-replica", "Examples per step on each replica."),
    option("--run-folder", metavar="FOLDER", help="Run folder, instead of the file's; local or gs://."),
    option("--source", metavar="FOLDER", help="Folder of the code; default: that of the program."),
)
_CLUSTER_OPTIONS = (
    option("--topology", metavar="AxB", help="Topology of a TPU, such as 2x4."),
    option("--spot", is_flag=True, help="Use Spot machines, which may be preempted."),
    option("--image", metavar="IMAGE", help="Container image instead of the operator's default."),
    option("--requirements", metavar="FILE", help="A requirements file of pip."),
)


def takes_target(help_text: str, *, on_cluster: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add TARGET with its arguments, and the options of its job; the command gets them as `target` and `flags`."""
    options = (
        argument("words", nargs=-1, metavar="TARGET [ARGUMENTS]...", help=help_text, shell_complete=completion.targets),
        option("-f", "--filename", metavar="FILE", help="TARGET, as kubectl takes a file."),
        *_OPTIONS,
        *(_CLUSTER_OPTIONS if on_cluster else ()),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_target(words: tuple[str, ...], filename: str | None, **given: Any) -> Any:
            typed = [*([filename] if filename else []), *words]
            if not typed:
                raise click.UsageError("Missing TARGET, such as job.yaml or train.py.")
            described = {field.name: given.pop(field.name) for field in fields(Flags) if field.name in given}
            return command(target=typed[0], flags=Flags(**described, arguments=tuple(typed[1:])), **given)

        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), with_target)

    return decorate


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


def document(target: str, flags: Flags, program: Mapping[str, Any], *, name: str | None = None) -> dict[str, Any]:
    """Return the job that trains `program` (the section `spec.program`) with these options.

    Its name is --name, else `name`, else one that the API server generates. Raises InvalidSpec.
    """
    from mptraining_api import accelerators

    refuse_together(batch_size=flags.batch_size, batch_size_per_replica=flags.batch_size_per_replica)
    machine: dict[str, Any] = {"type": accelerators.canonical_name(flags.accelerator or "cpu")}
    machine |= _without_none(topology=flags.topology, countPerWorker=flags.count)
    if flags.spot:
        machine["provisioning"] = "Spot"
    spec: dict[str, Any] = {"accelerator": machine, **_without_none(workers=flags.workers)}
    if flags.precision:
        spec["precision"] = {"policy": _POLICIES[flags.precision]}
    spec["program"] = dict(program)
    if flags.data or flags.validation or flags.label:
        spec["data"] = {"train": list(flags.data)} | _without_none(
            validation=list(flags.validation) or None, label=flags.label
        )
    batch = {"global": flags.batch_size, "perReplica": flags.batch_size_per_replica}
    training = _without_none(epochs=flags.epochs, batchSize=_without_none(**batch) or None)
    if training:
        spec["training"] = training
    if flags.run_folder:
        spec["output"] = {"uri": flags.run_folder}
    if flags.image:
        spec["podTemplate"] = {"image": flags.image}
    chosen = flags.name or name
    metadata = {"name": chosen} if chosen else {"generateName": f"{name_prefix(target)}-"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def application(target: str, flags: Flags) -> dict[str, Any]:
    """Return `spec.program` for an application, which is a model by name."""
    return {"application": {"name": target, **_without_none(classes=flags.classes)}}


def name_prefix(target: str) -> str:
    """Return the prefix of a job's name: `train` for `code/train.py`, `build` for `flowers.model:build`."""
    stem = PurePosixPath(target.rpartition(":")[2]).stem
    words = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_LONGEST_PREFIX].strip("-")
    return words if re.match(r"[a-z]", words) else f"job-{words}".strip("-")[:_LONGEST_PREFIX]


def refuse_flags_of_program(target: str, flags: Flags) -> None:
    """Raise InvalidSpec if options that describe a program's job are given with a file, which they could contradict."""
    given = [field.name for field in fields(flags) if getattr(flags, field.name) not in (None, (), False)]
    shown = ["ARGUMENTS" if name == "arguments" else f"--{name.replace('_', '-')}" for name in given]
    if refused := [name for name in shown if name != "--run-folder"]:
        conflict = f"is a complete file; it cannot be combined with {', '.join(refused)}"
        raise InvalidSpec(target, conflict, next_step="Write it into the file.")


def refuse_arguments(kind: Target, flags: Flags) -> None:
    """Raise InvalidSpec if a program that is not a script has arguments, or one that is no application has classes."""
    if kind != "script" and flags.arguments:
        raise InvalidSpec("ARGUMENTS", repr(flags.arguments[0]), expected="a script or notebook, which takes arguments")
    if kind != "application" and flags.classes is not None:
        raise InvalidSpec("--classes", f"has no meaning for a {kind}", expected="an application's name as TARGET")


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
