"""Shell completion of `kubectl mptj`: the executable `kubectl_complete-mptj`, which kubectl runs for its plugin.

kubectl passes the words after `mptj`, the incomplete one last, and reads candidates, one per line, followed by one of
cobra's numeric ShellCompDirectives.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence

# Cobra's ShellCompDirectiveDefault (complete file names) and ShellCompDirectiveNoFileComp.
FILES, NO_FILES = 0, 4


def candidates(words: Sequence[str]) -> tuple[list[str], int]:
    """Return (candidates, directive) for the words after `kubectl mptj`; the last one is incomplete.

    Uses typer's bash completion protocol, which is the same in all versions of typer, unlike its classes.
    """
    from mptraining.cli.main import app

    given = list(words) or [""]
    variables = {
        "_MPTJ_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(["mptj", *given]) if given[-1] else f"{shlex.join(['mptj', *given[:-1]])} ",
        "COMP_CWORD": str(len(given)),
    }
    output = io.StringIO()
    os.environ.update(variables)
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        app(args=[], prog_name="mptj")
    found = output.getvalue().split()
    return found, NO_FILES if found else FILES


def main() -> None:
    found, directive = candidates(sys.argv[1:])
    for each in found:
        print(each)
    print(f":{directive}")
