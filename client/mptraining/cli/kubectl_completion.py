"""`kubectl_complete-mptj`: what kubectl asks when somebody presses Tab behind `kubectl mptj`.

kubectl passes the words behind `mptj`, the unfinished one last, and reads candidates, one a line, and a number that
says what the shell does next (kubectl's plugins; the numbers are cobra's).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence

# Cobra's ShellCompDirective: complete file names, or do not.
FILES, NO_FILES = 0, 4


def candidates(words: Sequence[str]) -> tuple[list[str], int]:
    """(candidates, directive) for the words behind `kubectl mptj`; the last is the unfinished one.

    They are what bash would be told: its protocol is the same in all versions of typer, whose classes are not.
    """
    from mptraining.cli.main import app

    given = list(words) or [""]
    asked = {
        "_MPTJ_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(["mptj", *given]) if given[-1] else f"{shlex.join(['mptj', *given[:-1]])} ",
        "COMP_CWORD": str(len(given)),
    }
    said = io.StringIO()
    os.environ.update(asked)
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        app(args=[], prog_name="mptj")
    found = said.getvalue().split()
    return found, NO_FILES if found else FILES


def main() -> None:
    found, directive = candidates(sys.argv[1:])
    for each in found:
        print(each)
    print(f":{directive}")
