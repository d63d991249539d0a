"""Local backend of `tfc.run(..., backend="local")`: trains the same package and document in local processes.

The package is unpacked as in a pod and run by `mptraining.local.run`; the run folder is the job's output, else
`runs/<name>` in the current folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptraining.job_file.paths import absolute_path
from mptraining.local.job import LocalJob, failed
from mptraining.local.run import Machine, run_local, this_machine
from mptraining.packaging.package import Package
from mptraining_api.accelerators import lookup
from mptraining_api.validation.mistakes import InvalidJobFile


def train_locally(
    document: Mapping[str, Any],
    package: Package,
    *,
    command: Sequence[str] | None = None,
    any_accelerator: bool = False,
    machine: Machine | None = None,
) -> LocalJob:
    """Train the job to its end and return it. `command` replaces the trainer's command in each worker.

    `any_accelerator`: the caller asked for none, so that a machine without the document's takes its CPU.

    Raises Problem before any process starts, and if training failed, after the output was shown.
    """
    again = f"run(…, name={document['metadata']['name']!r})"
    name = document["metadata"]["name"]
    given = (document["spec"].get("output") or {}).get("uri")
    folder = absolute_path(given, Path.cwd()) if given else str(Path.cwd() / "runs" / name)
    spec = {**document["spec"], "source": package.source(config_map=name)}
    if any_accelerator and (machine or this_machine()).lacks(lookup(spec["accelerator"]["type"]).kind):
        spec["accelerator"] = {"type": "cpu"}
    body = {**document, "spec": spec}
    if package.requirements is not None:
        print(f"note: {package.requirements} is not installed here: the job takes this environment's packages")
    with tempfile.TemporaryDirectory(prefix="mptraining-source-") as scratch:
        for file in package.files:
            place = Path(scratch, "source", file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
            place.chmod(0o755 if file.executable else 0o644)
        job_file = Path(scratch, "job.yaml")
        job_file.write_text(json.dumps(body), encoding="utf-8")

        def shown(text: str) -> str:
            # Messages name the user's files, not the temporary copy.
            return text.replace(f"{scratch}/source/", "")

        options: dict[str, Any] = {} if command is None else {"command": command}
        try:
            exit_code = run_local(job_file, output=folder, again=again, shown=shown, **options)
        except InvalidJobFile as problem:
            # The user wrote arguments and no file.
            raise problem.without_file() from None
    if exit_code:
        raise failed(name, folder, exit_code)
    return LocalJob(name, folder)
