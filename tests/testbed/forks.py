"""Trainer processes that start in a second: forked from one that has only imported TensorFlow.

TensorFlow creates its devices and threads at first use, so that a copy of a process that only imported it is as good as
a new one. It differs in one thing: all copies share the hash seed of their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from unittest import mock

from mptraining_api.launch import INCARNATION, INDEX, PROGRESS_SECONDS, SOURCE_FOLDER, TERMINATION_LOG, launch
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolved_job import ResolvedJob
from tests.soak.kill_and_resume.faults import NO_FAULT, Fault
from tests.testbed.processes import free_ports

_forkserver = multiprocessing.get_context("forkserver")
# Every worker needs these modules, and none of them creates a device; a fork imports its parent's main module.
_forkserver.set_forkserver_preload(["pytest.__main__", "keras", "mptraining_trainer.run", "mptraining_trainer.train"])
# Two threads must not read the end of one process.
_lock = threading.Lock()


class Fork:
    """A forked trainer process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, environment: Mapping[str, str], output: Path, fault: Fault = NO_FAULT) -> None:
        """Standard output is in `output`, standard error in `.err`."""
        self._process = _forkserver.Process(target=_work, args=(dict(environment), output, fault), daemon=True)
        with _lock, mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1"):
            self._process.start()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutError."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"a worker still runs after {timeout:.0f} s")
            time.sleep(0.02)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def worker_environments(
    job: ResolvedJob, folder: Path, number: int, *, source: Path | None, workers: int | None = None
) -> list[tuple[dict[str, str], Path]]:
    """Return environment and output file of each worker of attempt `number`, as a pod has them. `workers` is the number
    of an elastic job's workers.
    """
    hosts = [f"127.0.0.1:{port}" for port in free_ports(workers or job.workers)]
    job_file = folder / f"{number}.json"
    job_file.write_text(job.to_json())
    launched = launch(
        for_attempt(job, workers=workers), hosts=hosts, job_path=str(job_file), attempt=number, workers=workers
    )
    environment = {**os.environ, **launched.environment, PROGRESS_SECONDS: "0", INCARNATION: f"i{number}"}
    if source is not None:
        environment[SOURCE_FOLDER] = str(source)
    outputs = [folder / f"{number}-{index}.out" for index in range(len(hosts))]
    return [
        (environment | {INDEX: str(index), TERMINATION_LOG: str(output.with_suffix(".last"))}, output)
        for index, output in enumerate(outputs)
    ]


def _work(environment: dict[str, str], output: Path, fault: Fault) -> NoReturn:
    code = 1
    try:
        for number, name in ((1, output), (2, output.with_suffix(".err"))):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(environment)
        fault.arm()
        from mptraining_trainer import __main__ as trainer

        code = trainer.main(["train"])
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run in this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
