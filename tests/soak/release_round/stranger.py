"""A person without the repository: from `pip install` to a trained model of own images."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.soak.release_round.place import VERSION, Place

# Of this machine, only what reaches a package index through its proxy.
_KEPT = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "PIP_FIND_LINKS")
_IMAGES = """
from pathlib import Path
import numpy as np
from PIL import Image
draw = np.random.default_rng(0)
for channel, colour in enumerate(("red", "green", "blue")):
    Path("images", colour).mkdir(parents=True)
    for number in range(60):
        pixels = draw.integers(0, 120, (16, 16, 3), dtype=np.uint8)
        pixels[..., channel] += 100
        Image.fromarray(pixels).save(f"images/{colour}/{number}.png")
"""
_USE = """
import keras, numpy as np
model = keras.models.load_model("runs/colours/model/model.keras")
red = np.full((1, 16, 16, 3), 60, "float32"); red[..., 0] += 100
assert np.asarray(model(red)).argmax() == 2, "not red"
"""


def first_job(place: Place, python: str) -> float:
    """Install from the index alone and train; return the seconds of all commands together."""
    home = place.folder / "stranger"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    before = len(place.rows)
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"HOME": str(home), "PATH": f"{home}/env/bin:/usr/bin:/bin", "PIP_NO_CACHE_DIR": "1"}
    alone = ("env", "--ignore-environment", *(f"{name}={value}" for name, value in environment.items()))

    def step(what: str, *command: str) -> str:
        said = place.timed(what, *alone, *command, folder=home)
        # Without the variables.
        _, _, seconds = place.rows[-1]
        place.rows[-1] = (what, place.plain(" ".join(_short(each) for each in command)), seconds)
        return said

    step("a stranger: an empty environment", python, "-m", "venv", "env")
    wanted = f"mptraining[trainer-cpu]=={VERSION}"
    step("a stranger: installed", "pip", "install", "--quiet", "--index-url", f"{place.index}/simple/", wanted)
    found = step("a stranger: whose it is", "python", "-c", "import mptraining; print(mptraining.__file__)").strip()
    assert Path(found).is_relative_to(home), f"{found} is not the installed package"
    step("a stranger: images drawn", "python", "-c", _IMAGES)
    step("a stranger: records", "mptj", "records", "convert", "images", "records", "--validation-fraction", "0.2")
    flags = "--program cnn --accelerator cpu --data records/train-*.tfrecord --validation records/validation-*.tfrecord"
    step("a stranger: a job file", *f"mptj init colours.yaml {flags} --epochs 5 --batch-size 16".split())
    step("a stranger: checked", "mptj", "check", "colours.yaml")
    step("a stranger: trained", "mptj", "run", "colours.yaml")
    step("a stranger: the model in plain Keras", "python", "-c", _USE)
    return sum(seconds for _, _, seconds in place.rows[before:])


def _short(word: str) -> str:
    return "…" if "\n" in word else word
