"""The program that `cloud_fit` ships: it loads what was written to the remote folder, and calls `model.fit`.

It is read as text, and runs in the job, where this package is not imported.
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


def callback(told: dict[str, Any]) -> Any:
    """What `cloud_fit._described` wrote: one of Keras' own, as it was when it was given."""
    made = getattr(tf.keras.callbacks, told["class"])(**told["arguments"])
    for name, found in told["attributes"].items():
        # np.less or np.greater.
        setattr(made, name, getattr(np, found["numpy"]) if isinstance(found, dict) else found)
    return made


arguments = {name: value(*each) for name, each in told["arguments"].items()}
callbacks = [callback(each) for each in told["callbacks"]]
model = tf.keras.models.load_model(path(told["model"]))
# As the package's own does each epoch; `output` is where its notebook looks for the trained model.
callbacks += [tf.keras.callbacks.ModelCheckpoint(path(name), save_freq="epoch") for name in told["saves"]]
model.fit(**arguments, callbacks=callbacks)
