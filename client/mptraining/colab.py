"""One line for a program that was written for tensorflow-cloud: `import mptraining.colab`.

From then on `import tensorflow_cloud as tfc` is `mptraining.tensorflow_cloud`, without installing the 3.3 GB of the
real package; one that is imported already is redirected (`mptraining.tensorflow_cloud.install`).

    import mptraining.colab; mptraining.colab.run_here()      # jobs train on this machine, without a cluster
    python -m mptraining.colab [--here] FILE [ARGUMENTS]      # the same for a script that stays as it is
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from mptraining import tensorflow_cloud

_NAME = "tensorflow_cloud"
_USAGE = "usage: python -m mptraining.colab [--here] FILE [ARGUMENTS]"

if _NAME not in sys.modules:
    sys.modules[_NAME] = tensorflow_cloud
elif sys.modules[_NAME] is not tensorflow_cloud and not tensorflow_cloud.remote():
    tensorflow_cloud.install()


def run_here() -> None:
    """From now on `tfc.run` trains in processes of this machine, unless a call names `backend` or `where`."""
    from mptraining.run_program import BACKEND

    os.environ[BACKEND] = "local"


def main(words: Sequence[str]) -> None:
    """Runs a script as `python FILE ARGUMENTS` would, with tensorflow_cloud replaced."""
    from mptraining_api.problems import Problem

    here = words[:1] == ["--here"]
    file, *arguments = words[1:] if here else [*words]
    if here:
        run_here()
    sys.argv = [file, *arguments]
    # As Python does it for a script: in place of the folder of `-m`, which is the current one.
    sys.path[0] = str(Path(file).resolve().parent)
    try:
        runpy.run_path(file, run_name="__main__")
    except Problem as problem:
        sys.exit(f"{type(problem).__name__}: {problem}")


if __name__ == "__main__":
    _given = [each for each in sys.argv[1:] if each != "--here"]
    if not _given:
        sys.exit(_USAGE)
    if not _given[0].endswith(".py") or not Path(_given[0]).is_file():
        sys.exit(f"mptraining.colab: no script {_given[0]!r}; expected a .py file. {_USAGE}")
    main(sys.argv[1:])
