"""Replacement of tensorflow-cloud by one line in an unchanged program: `import mptraining.colab`.

After it, `import tensorflow_cloud as tfc` imports `mptraining.tensorflow_cloud`, without the 3.3 GB of the real
package. For a program written for Keras 2, `TF_USE_LEGACY_KERAS=1` (tf_keras) is set with a printed note, if TensorFlow
is not imported yet.

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
from mptraining_api.problems import InvalidProgram

_NAME = "tensorflow_cloud"
_LEGACY = "TF_USE_LEGACY_KERAS"
_USAGE = "usage: python -m mptraining.colab [--here] FILE [ARGUMENTS]"


def _use_keras_2(text: str) -> None:
    """Set TF_USE_LEGACY_KERAS=1 if the program needs Keras 2, unless it is already set or TensorFlow is imported."""
    if "tensorflow" in sys.modules or _LEGACY in os.environ or tensorflow_cloud.remote():
        return
    from mptraining_api.keras_2.source_code import detect_in_source

    code = detect_in_source(text)
    if code.needs_legacy and importlib.util.find_spec("tf_keras") is not None:
        os.environ[_LEGACY] = "1"
        sign, why = code.keras_2[0].code, code.keras_2[0].why
        print(f"note: tf.keras is tf_keras here ({_LEGACY}=1): the program is written for Keras 2: {sign} ({why})")


def _running_notebook() -> str:
    """Return the running notebook as program text; empty if it is not available."""
    from mptraining.packaging.notebooks import ipython_shell, notebook_to_program, running_notebook
    from mptraining_api.problems import Problem

    if ipython_shell() is None:
        return ""
    try:
        return notebook_to_program(running_notebook(as_saved=True)).text
    except Problem:
        # `tfc.run` raises the same problem to the user.
        return ""


if _NAME not in sys.modules:
    sys.modules[_NAME] = tensorflow_cloud
elif sys.modules[_NAME] is not tensorflow_cloud and not tensorflow_cloud.remote():
    raise InvalidProgram(
        _NAME,
        "the real package is already imported",
        next_step="Restart, and write `import mptraining.colab` before the first `import tensorflow_cloud`.",
    )
if "IPython" in sys.modules and not tensorflow_cloud.remote():
    _use_keras_2(_running_notebook())


def run_here() -> None:
    """Make `tfc.run` train in processes of this machine, unless a call has `backend` or `cluster`."""
    from mptraining.tensorflow_cloud_compat.launch import BACKEND

    os.environ[BACKEND] = "local"


def main(words: Sequence[str]) -> None:
    """Run a script like `python FILE ARGUMENTS`, with tensorflow_cloud replaced."""
    from mptraining_api.problems import Problem

    here = words[:1] == ["--here"]
    file, *arguments = words[1:] if here else [*words]
    if here:
        run_here()
    _use_keras_2(Path(file).read_text(encoding="utf-8", errors="replace"))
    sys.argv = [file, *arguments]
    # Python puts the script's folder first; with `-m` the first entry is the current folder.
    sys.path[0] = str(Path(file).resolve().parent)
    try:
        runpy.run_path(file, run_name="__main__")
    except Problem as problem:
        sys.exit(f"{type(problem).__name__}: {problem}")


if __name__ == "__main__":
    _given = [word for word in sys.argv[1:] if word != "--here"]
    if not _given:
        sys.exit(_USAGE)
    if not _given[0].endswith(".py") or not Path(_given[0]).is_file():
        sys.exit(f"mptraining.colab: no script {_given[0]!r}; expected a .py file. {_USAGE}")
    main(sys.argv[1:])
