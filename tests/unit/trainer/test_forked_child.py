"""A forked child of the user's code ends where that code ends, with Python's exit code; in real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from mptraining_trainer.forked_child import drop_in_children, user_code
dropped = []
drop_in_children(lambda: dropped.append("first"))
withdraw = drop_in_children(lambda: dropped.append("withdrawn"))
drop_in_children(lambda: dropped.append("last"))
withdraw()
try:
    with user_code():
        child = os.fork()
        if child == 0:
            print(dropped)
            {end}
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), dropped)
finally:
    print("the trainer's work", flush=True)
"""


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data"),
        ("raise ValueError('no data')", 1, "ValueError: no data"),
    ],
)
def test_a_forked_child_ends_with_the_users_code(end: str, code: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == ["['last', 'first']", f"{code} []", "the trainer's work"]
    assert message in done.stderr
