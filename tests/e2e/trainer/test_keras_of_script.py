"""The table of signs against Keras 3 and tf_keras themselves: each text is run under both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from mptraining_api.keras_2 import names as keras_2_names

FILE = Path(__file__).parents[2] / "golden" / "keras_2_code.yaml"
TABLE = yaml.safe_load(FILE.read_text())
RUN = """
import contextlib, io, json, os, sys, tempfile, warnings
import yaml
table = yaml.safe_load(open(sys.argv[1]))
warnings.simplefilter("ignore")
said = {}
for kind in ("keras_2", "either", "keras_3"):
    for code in table[kind]:
        os.chdir(tempfile.mkdtemp(dir=sys.argv[2]))
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(table["prelude"] + code, "program", "exec"), {"__name__": "__main__"})
                said[code] = ""
            except Exception as error:
                said[code] = f"{type(error).__name__}: {error}"
import tensorflow as tf
def there(name):
    value = tf.keras
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None
names = {name: there(name) for name in json.loads(sys.argv[3])}
print(json.dumps([said, names]))
"""


def outcomes(folder: Path, legacy: bool) -> tuple[dict[str, str], dict[str, bool]]:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1" if legacy else "0"}
    names = json.dumps(sorted(keras_2_names.KERAS_2_ONLY | keras_2_names.KERAS_3_ONLY))
    command = [sys.executable, "-c", RUN, str(FILE), str(folder), names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said, there = json.loads(done.stdout.splitlines()[-1])
    return said, there


def test_each_generation_runs_its_own_code_and_refuses_the_other_s(tmp_path: Path) -> None:
    three, in_three = outcomes(tmp_path, legacy=False)
    two, in_two = outcomes(tmp_path, legacy=True)
    wrong = [f"Keras 3 runs {code!r}" for code in TABLE["keras_2"] if not three[code]]
    wrong += [f"tf_keras: {code!r}: {two[code]}" for code in TABLE["keras_2"] + TABLE["either"] if two[code]]
    wrong += [f"Keras 3: {code!r}: {three[code]}" for code in TABLE["keras_3"] + TABLE["either"] if three[code]]
    wrong += [f"tf_keras runs {code!r}" for code in TABLE["keras_3"] if not two[code]]
    # The names of optimizers.legacy exist, and raise when they are used.
    wrong += [f"{n}: in Keras 3" for n in keras_2_names.KERAS_2_ONLY - {"optimizers.legacy"} if in_three[n]]
    wrong += [f"{n}: not in tf_keras" for n in keras_2_names.KERAS_2_ONLY if not in_two[n]]
    wrong += [f"{n}: in tf_keras" for n in keras_2_names.KERAS_3_ONLY if in_two[n]]
    wrong += [f"{n}: not in Keras 3" for n in keras_2_names.KERAS_3_ONLY if not in_three[n]]
    assert wrong == []
