"""Server of the folder of a job without output.uri: worker 0 keeps it until a client fetches it or the time is up.

    train ──► the process becomes `keep` ──► exit code 0        TensorFlow's memory and accelerators are free by then
                     ▲
    `files`, `send`  read the kept folder; see `folder_stream`
    `fetched`        ends `keep`

Clients run the verbs in the pod by `pods/exec`. The pod that `mptj fetch` creates to read a volume runs `keep` too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mptraining_api.launch import MODEL_WAIT_SECONDS, MODEL_WAITS, WorkerIdentity
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from mptraining_trainer.report.telemetry import Telemetry

# Default of MODEL_WAIT_SECONDS: enough for a user at the terminal, short for a machine that costs money.
DEFAULT_SECONDS = 600.0
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def keep_seconds(job: ResolvedJob, identity: WorkerIdentity, environment: Mapping[str, str]) -> float:
    """Return the seconds to keep the model after a success; 0 except on worker 0 of a job without output.

    Raise InvalidSpec if the setting is not a number.
    """
    text = environment.get(MODEL_WAIT_SECONDS, "")
    try:
        asked = float(text) if text else DEFAULT_SECONDS
    except ValueError:
        raise InvalidSpec(MODEL_WAIT_SECONDS, f"{text!r}", expected="a number of seconds") from None
    return max(0.0, asked) if identity.is_chief and job.output is None else 0.0


def announce(telemetry: Telemetry, job: ResolvedJob, wait: float) -> None:
    """Report that the model waits; a client that follows the log then fetches it."""
    telemetry.notice(
        MODEL_WAITS,
        f"no output.uri: the model is kept {wait:g} s to be fetched, by `mptj fetch {job.name}` or Job.model()",
    )


def exec_keep(folder: str, wait: float) -> NoReturn:
    """Replace this process with the `keep` process."""
    # Blocked signals stay blocked across exec, so none is lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, "-m", "mptraining_trainer", "keep", folder, f"{wait:g}"]
    )


def wait_until_fetched(folder: str, wait: float) -> bool:
    """Wait until the folder is fetched, SIGTERM arrives, or `wait` seconds have passed; return whether it is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    file = _file()
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"pid": os.getpid(), "folder": folder}), encoding="utf-8")
    part.replace(file)
    try:
        received = signal.sigtimedwait(_SIGNALS, wait)
    finally:
        file.unlink(missing_ok=True)
    return received is not None and received.si_signo == signal.SIGUSR1


def find_folder(folder: str) -> Path:
    """Return `folder`, relative to the kept one. Raise InvalidData if it is relative and none is kept here."""
    return Path(folder) if Path(folder).is_absolute() else Path(_read_kept()["folder"], folder)


def end_keep() -> None:
    """End the `keep` process after its folder was fetched. Raise InvalidData if none is kept here."""
    os.kill(int(_read_kept()["pid"]), signal.SIGUSR1)


def _file() -> Path:
    return Path(tempfile.gettempdir(), "mptraining-kept.json")


def _read_kept() -> dict[str, str]:
    try:
        kept: dict[str, str] = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidData("folder", "none is kept here", expected="worker 0 after a success, without output") from None
    return kept
