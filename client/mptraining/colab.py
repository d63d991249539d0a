"""One line for a program that was written for tensorflow-cloud: `import mptraining.colab`.

From then on `import tensorflow_cloud as tfc` is `mptraining.tensorflow_cloud`, without installing the 3.3 GB of the
real package; one that is imported already is redirected (`mptraining.tensorflow_cloud.install`). A program for Keras 2
gets tf_keras here too, if TensorFlow is not imported yet: `TF_USE_LEGACY_KERAS=1` is set, and that is printed.

    import mptraining.colab; mptraining.colab.run_here()      # jobs train on this machine, without a cluster
    python -m mptraining.colab [--here] FILE [ARGUMENTS]      # the same for a script that stays as it is
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from mptraining import tensorflow_cloud

_NAME = "tensorflow_cloud"
_LEGACY = "TF_USE_LEGACY_KERAS"
_USAGE = "usage: python -m mptraining.colab [--here] FILE [ARGUMENTS]"


def _use_keras_2(text: str) -> None:
    """Makes `tf.keras` tf_keras in this process if the program's text asks for it and nothing has decided it yet."""
    if "tensorflow" in sys.modules or _LEGACY in os.environ or tensorflow_cloud.remote():
        return
    from mptraining_api.keras_2.source_code import read

    code = read(text)
    if code.needs_legacy and importlib.util.find_spec("tf_keras") is not None:
        os.environ[_LEGACY] = "1"
        found, why = code.keras_2[0].found, code.keras_2[0].why
        print(f"note: tf.keras is tf_keras here ({_LEGACY}=1): the program is written for Keras 2: {found} ({why})")


def _running_notebook() -> str:
    """The notebook's text as far as it can be had, else nothing."""
    from mptraining.packaging.notebooks import program, running_notebook, shell
    from mptraining_api.problems import Problem

    if shell() is None:
        return ""
    try:
        return program(running_notebook(as_saved=True)).text
    except Problem:
        # `run` says what is wrong with it.
        return ""


if _NAME not in sys.modules:
    sys.modules[_NAME] = tensorflow_cloud
elif sys.modules[_NAME] is not tensorflow_cloud and not tensorflow_cloud.remote():
    tensorflow_cloud.install()
if "IPython" in sys.modules and not tensorflow_cloud.remote():
    _use_keras_2(_running_notebook())


def run_here() -> None:
    """From now on `tfc.run` trains in processes of this machine, unless a call names `backend` or `where`."""
    from mptraining.tensorflow_cloud_compat.run import BACKEND

    os.environ[BACKEND] = "local"


def main(words: Sequence[str]) -> None:
    """Runs a script as `python FILE ARGUMENTS` would, with tensorflow_cloud replaced."""
    from mptraining_api.problems import Problem

    here = words[:1] == ["--here"]
    file, *arguments = words[1:] if here else [*words]
    if here:
        run_here()
    _use_keras_2(Path(file).read_text(encoding="utf-8", errors="replace"))
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
