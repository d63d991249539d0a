"""Command `mptj run`: trains a job, a sweep or a program on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptraining.cli import options, program_flags
from mptraining.cli.output import fields_named, named, typed_command
from mptraining.cli.program_flags import FIELDS, Flags, Target, takes_target, target_kind

if TYPE_CHECKING:
    from mptraining.packaging.package import Package


@options.command()
@takes_target(
    "A job file, a sweep's file, train.py, train.ipynb, module:function, or an application.", on_cluster=False
)
@options.count("--parallel", "Trials of a sweep at a time; default: 1.")
@options.plain
def run(target: str, flags: Flags, parallel: int | None, plain: bool) -> int:
    """Train a job, sweep or program here.

    Paths in a file are relative to its folder. The run folder is the file's output.uri, or runs/NAME. The same command
    resumes a run that was interrupted. `mptj submit` takes the same TARGET to a cluster.

    \b
    mptj run job.yaml
    mptj run sweep.yaml --parallel 2
    mptj run train.py --epochs 5 -- --lr=0.1
    """
    from mptraining_api.validation.job_text import holds_sweep

    kind = target_kind(target)
    if kind == "file":
        program_flags.refuse_flags_of_program(target, flags)
        if holds_sweep(target):
            return _run_sweep(target, flags.run_folder, parallel=parallel or 1, plain=plain)
    options.refuse_with("a single job", parallel=parallel)
    if kind != "file":
        return _run_program(target, kind, flags, plain=plain)
    from mptraining.display.choice import display_here
    from mptraining.local.runner import LocalRunner

    first = f"training on this machine; {_cluster()} takes the job with: {shlex.join(['mptj', 'submit', target])}"
    runner = LocalRunner(output=flags.run_folder, first_line=first)
    return runner.run(target, display_here(plain=plain)).exit_code


def _cluster() -> str:
    from mptraining.cluster.connection import current_context

    context = current_context(os.environ)
    return f"the cluster of context {context!r}" if context else "a cluster"


def _run_sweep(file: str, folder: str | None, *, parallel: int, plain: bool) -> int:
    from mptraining.sweeps.display import sweep_display_here
    from mptraining.sweeps.start import open_sweep, run_sweep

    code, _ = run_sweep(
        open_sweep(Path(file), parallel=parallel, output=folder), display=sweep_display_here(plain=plain)
    )
    return code


def _run_program(target: str, kind: Target, flags: Flags, *, plain: bool) -> int:
    from mptraining.packaging import program

    program_flags.refuse_arguments(kind, flags)
    folder = Path(flags.source) if flags.source else None
    if target.endswith(".ipynb"):
        package = program.ship_file(Path(target), folder=folder, arguments=flags.arguments)
        return _run_document(_job(target, flags, package.program), package, None, flags, plain=plain)
    root, section = folder or Path.cwd(), program_flags.application(target, flags)
    if kind == "script":
        root, path = program.located(Path(target), folder)
        section = {"script": {"path": path, **({"arguments": [*flags.arguments]} if flags.arguments else {})}}
    elif kind == "function":
        section = {"function": {"entryPoint": target}}
    return _run_document(_job(target, flags, section), None, root, flags, plain=plain)


def _job(target: str, flags: Flags, program: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job with absolute paths: those of the command line begin in the current folder."""
    from mptraining.job_file.paths import absolute_path

    with fields_named(FIELDS):
        job = program_flags.document(target, flags, program, name=program_flags.name_prefix(target))
    for patterns in (job["spec"].get("data") or {}).values():
        if isinstance(patterns, list):
            patterns[:] = [absolute_path(pattern, Path.cwd()) for pattern in patterns]
    return job


def _run_document(job: dict[str, Any], package: Package | None, root: Path | None, flags: Flags, *, plain: bool) -> int:
    from mptraining.display.choice import display_here
    from mptraining.local.runner import LocalRunner

    runner = LocalRunner(output=flags.run_folder, folder=root, again=typed_command(), named=partial(named, FIELDS))
    with fields_named(FIELDS):
        return runner.run(job, display_here(plain=plain), package=package).exit_code
