"""Modules and commands in place of those that this machine cannot have: data, weights, Colab."""

from __future__ import annotations

import sys
from pathlib import Path

# Every Python with the folder on its path imports this, so the workers too.
_SITE = '''
import importlib.abc
import importlib.machinery
import sys

def rows(count, shape, classes, dtype="uint8"):
    """Images whose label can be read from their brightness, so that a few epochs learn it."""
    import numpy as np
    random = np.random.default_rng(len(shape) + count)
    labels = random.integers(0, classes, count)
    images = random.integers(0, 20, (count, *shape)) + (labels * (220 // classes)).reshape(-1, *[1] * len(shape))
    return images.astype(dtype), labels.astype("uint8")

def data(counts, shape, column):
    def load_data(*_, **__):
        train, test = (rows(count, shape, 10) for count in counts)
        return tuple((x, y.reshape(-1, 1) if column else y) for x, y in (train, test))
    return load_data

def unweighted(build):
    def model(*arguments, weights="imagenet", **keywords):
        return build(*arguments, weights=None if weights == "imagenet" else weights, **keywords)
    return model

def changed(module):
    name = module.__name__.rpartition(".")[2]
    if name in ("mnist", "fashion_mnist"):
        # The examples reshape to 60000 rows of mnist; the other one is trained for fewer.
        module.load_data = data((60000, 100) if name == "mnist" else (2000, 500), (28, 28), False)
    elif name == "cifar10":
        module.load_data = data((160, 64), (32, 32, 3), True)
    elif name == "resnet":
        module.ResNet50 = unweighted(module.ResNet50)
    elif name == "nasnet":
        module.NASNetMobile = unweighted(module.NASNetMobile)

CHANGED = {
    f"{keras}.src.{name}"
    for keras in ("keras", "tf_keras")
    for name in ("datasets.mnist", "datasets.fashion_mnist", "datasets.cifar10", "applications.resnet",
                 "applications.nasnet")
}

class Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real
    def create_module(self, spec):
        return self.real.create_module(spec)
    def exec_module(self, module):
        self.real.exec_module(module)
        changed(module)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in CHANGED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(spec.loader)
        return spec

sys.meta_path.insert(0, Finder())
'''
_DATASETS = """
import types
import sitecustomize
import tensorflow as tf

SHAPES = {"mnist": ((28, 28, 1), 10, (2000, 500)), "stanford_dogs": ((64, 64, 3), 120, (64, 64))}

def disable_progress_bar():
    pass

def load(name, split=None, with_info=False, as_supervised=True, **_):
    shape, classes, counts = SHAPES[name]
    sets = {
        part: tf.data.Dataset.from_tensor_slices(sitecustomize.rows(count, shape, classes))
        .map(lambda image, label: (image, tf.cast(label, tf.int64)))
        for part, count in zip(("train", "test"), counts)
    }
    info = types.SimpleNamespace(
        splits={part: types.SimpleNamespace(num_examples=count) for part, count in zip(("train", "test"), counts)},
        features={"label": types.SimpleNamespace(num_classes=classes)},
    )
    found = [sets[part] for part in split] if isinstance(split, list) else sets[split] if split else sets
    return (found, info) if with_info else found
"""
_PYPLOT = "def __getattr__(name):\n    return lambda *a, **k: None\n"
_COLAB = """
import json, os
def upload():
    return {"key.json": b""}
def authenticate_user():
    pass
def blocking_request(*_, **__):
    return {"ipynb": json.load(open(os.environ["JPY_SESSION_NAME"]))}
"""
_MODULES = {
    "sitecustomize.py": _SITE,
    "tensorflow_datasets.py": _DATASETS,
    "matplotlib/__init__.py": "",
    "matplotlib/pyplot.py": _PYPLOT,
}
# Only if the notebook is one of Colab's: the module `google.colab` means that Colab runs it.
_OF_COLAB = {
    "google/colab/__init__.py": "from google.colab import auth, files, _message\n",
    "google/colab/files.py": _COLAB,
    "google/colab/auth.py": _COLAB,
    "google/colab/_message.py": _COLAB,
}
# A notebook's commands that would use the network.
_COMMANDS = ("pip", "pip3", "gcloud", "docker", "git", "gsutil", "tensorboard")


def write(folder: Path, *, colab: bool) -> None:
    """Write the stubs into `folder`: modules, and commands in its `bin`."""
    for path, text in (_MODULES | (_OF_COLAB if colab else {})).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / "bin").mkdir()
    script = "#!/bin/sh\necho NAME is not called here: $*\n"
    commands = {name: script.replace("NAME", name) for name in _COMMANDS}
    # `python3 -m pip install`, in a notebook's subprocess.
    commands["python3"] = f'#!/bin/sh\n[ "$2" = pip ] && exit 0\nexec {sys.executable} "$@"\n'
    for name, text in commands.items():
        command = folder / "bin" / name
        command.write_text(text, encoding="utf-8")
        command.chmod(0o755)
