"""Training program of a `cloud_fit` job: loads model, data and callbacks from the remote folder and calls `model.fit`.

`cloud_fit` packages this file as text. It runs in the job and must not import this package.
"""

import argparse
import io
import json
from typing import Any

import numpy as np
import tensorflow as tf

_parser = argparse.ArgumentParser()
_parser.add_argument("--remote_dir", required=True)
FOLDER = _parser.parse_args().remote_dir


def path(*names: str) -> str:
    return str(tf.io.gfile.join(FOLDER, *names))


def content(*names: str) -> bytes:
    with tf.io.gfile.GFile(path(*names), "rb") as file:
        return bytes(file.read())


job = json.loads(content("training_assets", "fit.json"))
arrays = np.load(io.BytesIO(content("training_assets", "arrays.npz")), allow_pickle=False) if job["arrays"] else {}
datasets = tf.saved_model.load(path("training_assets", "datasets")) if job["datasets"] else None


def value(kind: str, what: Any) -> Any:
    """Decode a value that `cloud_fit._written` encoded."""
    if kind == "array":
        return arrays[what]
    if kind == "dataset":
        return getattr(datasets, what)()
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](value(*each) for each in what)
    if kind == "dict":
        return {value(*key): value(*each) for key, each in what}
    return what


def callback(encoded: dict[str, Any]) -> Any:
    """Restore a built-in Keras callback that `cloud_fit._described` encoded."""
    made = getattr(tf.keras.callbacks, encoded["class"])(**encoded["arguments"])
    for name, found in encoded["attributes"].items():
        # A mapping names a NumPy function: np.less or np.greater.
        setattr(made, name, getattr(np, found["numpy"]) if isinstance(found, dict) else found)
    return made


arguments = {name: value(*each) for name, each in job["arguments"].items()}
callbacks = [callback(each) for each in job["callbacks"]]
model = tf.keras.models.load_model(path(job["model"]))
# tensorflow-cloud's own program saves every epoch too; its example notebook loads the trained model from `output`.
callbacks += [tf.keras.callbacks.ModelCheckpoint(path(name), save_freq="epoch") for name in job["saves"]]
model.fit(**arguments, callbacks=callbacks)
