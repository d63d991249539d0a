"""TensorBoard beside the board, over the same folders, if it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from mptraining_api.problems import InvalidSpec

_URL = re.compile(r"http://\S+")
STOP_SECONDS = 5.0


def command(folders: Sequence[str]) -> list[str]:
    """Return the command line; TensorBoard chooses a free port and listens on this machine alone.

    Several folders are named by `--logdir_spec`, which separates them with commas.
    """
    where = ["--logdir", folders[0]] if len(folders) == 1 else ["--logdir_spec", ",".join(folders)]
    return [sys.executable, "-m", "tensorboard.main", *where, "--port", "0", "--reload_interval", "5"]


@contextmanager
def running_over(folders: Sequence[str], *, say: Callable[[str], None]) -> Iterator[None]:
    """Run TensorBoard until the end of the block; `say` gets its address. Raises InvalidSpec if it is not installed."""
    if not folders:
        raise InvalidSpec("--tensorboard", "there is no folder with runs", expected="WHERE with a run folder")
    if find_spec("tensorboard") is None:
        found = "TensorBoard is not installed here"
        raise InvalidSpec("--tensorboard", found, next_step="pip install 'tensorboard>=2.20,<2.22' setuptools")
    # Its own session, so that Ctrl-C is for the board, which then stops it.
    process = subprocess.Popen(  # noqa: S603 - a fixed command, no shell
        command(folders), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )

    def read() -> None:
        assert process.stderr is not None
        last = ""
        for line in process.stderr:
            last = line.strip() or last
            if found := _URL.search(line):
                say(f"TensorBoard: {found[0]}")
        if process.wait() > 0:
            say(f"TensorBoard ended with exit code {process.returncode}: {last}")

    thread = threading.Thread(target=read, daemon=True, name="tensorboard")
    thread.start()
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        thread.join(STOP_SECONDS)
