"""Shell completion of `kubectl mptj`: the executable `kubectl_complete-mptj`, which kubectl runs for its plugin.

kubectl passes the words after `mptj`, the incomplete one last, and reads candidates, one per line, followed by one of
cobra's numeric ShellCompDirectives.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from click.shell_completion import ShellComplete

# Cobra's ShellCompDirectiveDefault (complete file names) and ShellCompDirectiveNoFileComp.
FILES, NO_FILES = 0, 4


def candidates(words: Sequence[str]) -> tuple[list[str], int]:
    """Return (candidates, directive) for the words after `kubectl mptj`; the last one is incomplete."""
    from mptraining.cli.main import app

    *before, incomplete = list(words) or [""]
    items = ShellComplete(app, {}, "mptj", "_MPTJ_COMPLETE").get_completions(before, incomplete)
    # An item of another type asks the shell for its files or folders.
    names = [str(item.value) for item in items if item.type == "plain"]
    return names, NO_FILES if names else FILES


def main() -> None:
    names, directive = candidates(sys.argv[1:])
    for name in names:
        print(name)
    print(f":{directive}")
