"""The program that `cloud_fit` ships: it loads what was written to the remote folder, and calls `model.fit`.

It is read as text, and runs in the job, where this package is not imported.
"""

import argparse
import hashlib
import io
import json
import pickle
from typing import Any

import numpy as np
import tensorflow as tf

_parser = argparse.ArgumentParser()
_parser.add_argument("--remote_dir", required=True)
_parser.add_argument("--callbacks_sha256", required=True)
GIVEN = _parser.parse_args()
FOLDER = GIVEN.remote_dir


def path(*names: str) -> str:
    return str(tf.io.gfile.join(FOLDER, *names))


def content(*names: str) -> bytes:
    with tf.io.gfile.GFile(path(*names), "rb") as file:
        return bytes(file.read())


told = json.loads(content("training_assets", "fit.json"))
arrays = np.load(io.BytesIO(content("training_assets", "arrays.npz")), allow_pickle=False) if told["arrays"] else {}
datasets = tf.saved_model.load(path("training_assets", "datasets")) if told["datasets"] else None


def value(kind: str, what: Any) -> Any:
    """What `cloud_fit._written` wrote."""
    if kind == "array":
        return arrays[what]
    if kind == "dataset":
        return getattr(datasets, what)()
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](value(*each) for each in what)
    if kind == "dict":
        return {value(*key): value(*each) for key, each in what}
    return what


def pickled_callbacks() -> Any:
    """Code may be in a pickle: only what `cloud_fit` itself wrote is loaded."""
    found = content("training_assets", "callbacks.pickle")
    if hashlib.sha256(found).hexdigest() != GIVEN.callbacks_sha256:
        raise ValueError(f"{path('training_assets', 'callbacks.pickle')} is not what cloud_fit wrote: call it again")
    return pickle.loads(found)  # noqa: S301 - its digest is the job's


arguments = {name: value(*each) for name, each in told["arguments"].items()}
callbacks = pickled_callbacks() if told["callbacks"] else []
model = tf.keras.models.load_model(path(told["model"]))
# As the package's own does each epoch; `output` is where its notebook looks for the trained model.
callbacks += [tf.keras.callbacks.ModelCheckpoint(path(name), save_freq="epoch") for name in told["saves"]]
model.fit(**arguments, callbacks=callbacks)
