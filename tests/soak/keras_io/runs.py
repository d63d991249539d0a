"""One run of one script in one variant, as a process of its own in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mptraining.packaging.keras_choice import with_keras_of_folder
from mptraining_api.launch import INCARNATION, INDEX, SOURCE_FOLDER, launch
from mptraining_api.problems import Problem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from tests.soak.keras_io import files, functions
from tests.soak.keras_io.catalogue import Script
from tests.soak.keras_io.server import TIMED_OUT, Server
from tests.soak.keras_io.stubs import VARIABLE
from tests.soak.keras_io.variants import Variant, job
from tests.testbed.processes import free_ports

_SITE = Path(__file__).resolve().parent / "site"
# The trainer's advice in its refusals, and the fields that follow it.
_ADVICE: Mapping[str, Mapping[str, Any]] = {
    "strategy: None": {"strategy": "None"},
    "keras: Legacy": {"keras": "Legacy"},
}
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\w*(?::|$)")


@dataclass(frozen=True)
class Run:
    """The end of one run. `reason` is the trainer's (Succeeded, InvalidProgram, …), `message` its last message."""

    script: str
    variant: str
    exit_code: int
    seconds: float
    reason: str = ""
    message: str = ""
    # The advice of a refusal that this run followed, such as "strategy: None".
    followed: str = ""
    # The commit of this repository at which it ran.
    commit: str = ""
    # Warnings of the trainer, each with its reason.
    notices: list[str] = field(default_factory=list)
    # A record of each `fit` of the script: `stubs._record`.
    fits: list[dict[str, Any]] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0

    def line(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Bench:
    """The folder of runs, and the time limit of each."""

    server: Server
    folder: Path
    timeout: float
    commit: str = ""

    def run(self, script: Script, variant: Variant, *, capture: bool = False) -> Run:
        """Run the script, and if a refusal names a field to set, once more with that field. Raises NoFunction.

        `capture` first runs it up to its first fit, to keep that fit's data.

        A script for Keras 2 that failed without such a name runs once more under tf_keras, as its user would try.
        """
        if capture:
            self._once(script, variant, {}, capture=True)
        run = self._once(script, variant, {}, capture=False)
        if run.succeeded or variant.kind == "plain":
            return run
        advised = next((advice for advice in _ADVICE if advice in run.message), None)
        if advised is None and script.legacy and variant.kind == "script":
            second = self._once(script, variant, {"keras": "Legacy"}, capture=False)
            return replace(second, followed=f"keras: Legacy, which is not named by: {run.message}")
        if advised is None:
            return run
        second = self._once(script, variant, _ADVICE[advised], capture=False)
        return replace(second, followed=f"{advised}, after: {run.message}")

    def captured(self, script: Script) -> Path:
        """Return the folder with the data of the script's first fit, which its plain run wrote."""
        return self.folder / script.name / "data"

    def _once(self, script: Script, variant: Variant, extra: Mapping[str, Any], *, capture: bool) -> Run:
        folder = self.folder / script.name / str(variant)
        _prepare(script, folder)
        record, data = folder / "fits.jsonl", self.captured(script)
        settings = replace(script.settings, record=str(record), capture=str(data) if capture else None)
        environment = environ(folder, None) | {VARIABLE: settings.write()}
        began = time.monotonic()
        try:
            code = self._process(script, variant, extra, folder, environment)
        except Problem as refused:
            return Run(script.name, str(variant), 2, 0.0, refused.reason, str(refused), commit=self.commit)
        seconds = time.monotonic() - began
        reason, message = _end(folder, code)
        fits = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        notices = [f"{each['topic']}: {each['message']}" for each in _events(folder) if each.get("level") == "Warning"]
        for each in folder.iterdir():
            if each.name not in ("out.log", "job.json", "fits.jsonl"):
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        return Run(
            script.name,
            str(variant),
            code,
            round(seconds, 1),
            reason,
            message,
            commit=self.commit,
            notices=notices,
            fits=fits,
        )

    def _process(
        self, script: Script, variant: Variant, extra: Mapping[str, Any], folder: Path, environment: dict[str, str]
    ) -> int:
        """Return the exit code of the run's process. Raises Problem for a job that is refused before it starts."""
        if variant.kind == "plain":
            environment |= {"TF_USE_LEGACY_KERAS": "1"} if script.legacy else {}
            arguments = [script.path.name, str(variant.devices), variant.policy]
            return self.server.run("tests.soak.keras_io.plain", arguments, folder, environment, self.timeout)
        program: dict[str, Any] = {"script": {"path": script.path.name}}
        sections = dict(extra)
        if variant.kind == "function":
            program = functions.program(folder, script.path.name)
            sections |= functions.sections(self.captured(script), folder) | (
                {"keras": "Legacy"} if script.legacy else {}
            )
        # As `mptj run` does: the generation that the program needs.
        document, _ = with_keras_of_folder(job(variant, program, sections, str(folder / "run")), folder)
        resolved = resolve(MPTrainingJob.parse(document), ClusterSettings())
        job_file = folder / "job.json"
        hosts = [f"127.0.0.1:{port}" for port in free_ports(resolved.processes)]
        launched = launch(resolved, hosts=hosts, job_path=str(job_file), attempt=1)
        job_file.write_text(launched.job_file)
        environment |= {**launched.environment, INDEX: "0", INCARNATION: "a", SOURCE_FOLDER: str(folder)}
        return self.server.run("mptraining_trainer.__main__", ["train"], folder, environment, self.timeout)


def environ(folder: Path, packages: Path | None) -> dict[str, str]:
    """Return the environment of a process whose home is below `folder`; `packages` are additional
    imports of scripts.
    """
    path = [str(_SITE), *([str(packages)] if packages else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "HOME": str(folder / "HOME"),
        "KERAS_HOME": str(folder / "HOME" / ".keras"),
        "KERAS_BACKEND": "tensorflow",
        "MPLBACKEND": "Agg",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def _prepare(script: Script, folder: Path) -> None:
    """Create a new folder with the script, and with the files that its shell lines would download."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "HOME" / ".keras").mkdir(parents=True)
    shutil.copy(script.path, folder / script.path.name)
    for name, content in files.placed(script.title).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _end(folder: Path, code: int) -> tuple[str, str]:
    """Return reason and message: of the run folder's last Finished event, else of the last error in the output."""
    if code == TIMED_OUT:
        return "Timeout", ""
    finished = [each for each in _events(folder) if each.get("kind") == "Finished"]
    if finished:
        return str(finished[-1].get("reason", "")), str(finished[-1].get("message", ""))
    lines = (folder / "out.log").read_text(errors="replace").splitlines()
    errors = [line for line in lines if _ERROR.match(line)]
    return ("", "") if code == 0 else ("Error", errors[-1] if errors else "\n".join(lines[-3:]))


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "run" / "events").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def read(path: Path) -> dict[tuple[str, str], Run]:
    """Return the runs in a file of JSON lines, by script and variant; the last one counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = (Run(**json.loads(line)) for line in lines)
    return {(each.script, each.variant): each for each in found}
