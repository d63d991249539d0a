"""Stubs in a process that runs a script: downloads become small synthetic data, `fit` is cut short and recorded.

`install` is called at Python's start and imports nothing heavy: each stub is set when its module has been imported.
The settings come as JSON in the environment variable `KERASIO`, see `Settings`; they are read when a stub is used,
because `server` starts processes as copies of one that has imported Keras.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib.abc
import importlib.util
import io
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "KERASIO"
_SEED = 7
# The author of an example keeps a file here on his own machine.
_AUTHORS = "/Users/fchollet/Downloads/"
_GENERATIONS = ("keras.src", "tf_keras.src")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The changes that a run makes without editing the script."""

    # Rows of the training and the test part of a set of `keras.datasets`.
    rows: tuple[int, int] = (256, 64)
    # `fit` stops after so many epochs, and after so many batches of each; None: the script's own number.
    epochs: int | None = 2
    steps: int | None = None
    # After so many calls of `predict`, the model is called instead, which is faster; None: never.
    predicts: int | None = None
    # A file that takes one JSON line for each fit, and a folder that takes the first fit's data, where the run ends.
    record: str | None = None
    capture: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        given = json.loads(environment.get(VARIABLE, "{}"))
        return cls(**given | ({"rows": tuple(given["rows"])} if "rows" in given else {}))

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def install() -> None:
    """Install all stubs for the modules that this process will import."""
    patches: dict[str, Callable[[ModuleType], None]] = {
        "urllib.request": _addresses,
        "matplotlib.pyplot": _no_windows,
        "keras.src.backend.tensorflow.trainer": _keras_3,
        "keras.src.utils.model_visualization": _no_drawings,
        "keras.src.models.model": lambda module: _weights(module.Model),
        "keras.src.utils.file_utils": _no_hashes,
        "tf_keras.src.engine.training": _legacy,
        "tf_keras.src.utils.data_utils": _no_hashes,
        "tf_keras.src.utils.vis_utils": _no_drawings,
    }
    for base in _GENERATIONS:
        for name in ("mnist", "fashion_mnist", "cifar10", "cifar100", "imdb", "reuters", "boston_housing"):
            patches[f"{base}.datasets.{name}"] = functools.partial(_dataset, name=name)
    sys.meta_path.insert(0, _AfterImport(patches))
    _seeded_start()
    _authors_files()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and applies its patch when it has been executed."""

    def __init__(self, patches: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        patch = self._patches.get(name)
        if patch is None:
            return None
        others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def patched(module: ModuleType) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


def _dataset(module: ModuleType, *, name: str) -> None:
    from tests.soak.keras_io import arrays

    def load_data(*args: Any, num_words: int | None = None, maxlen: int | None = None, **_: Any) -> Any:
        del args
        settings = Settings.read(os.environ)
        if name in arrays.IMAGES:
            return arrays.images(name, settings.rows)
        if name == "boston_housing":
            return arrays.table(settings.rows, columns=13)
        return arrays.token_lists(name, settings.rows, vocabulary=num_words or 1000, maxlen=maxlen)

    module.load_data = load_data  # type: ignore[attr-defined]
    if name in ("imdb", "reuters"):
        module.get_word_index = lambda **_: {f"w{each}": each for each in range(1, 1000)}  # type: ignore[attr-defined]


def _addresses(module: ModuleType) -> None:
    """Make `urlopen` and `urlretrieve` return synthetic files; Keras, pandas and NumPy download by these two."""
    from tests.soak.keras_io import files

    def address(url: Any) -> str:
        return url if isinstance(url, str) else str(url.full_url)

    class Response(io.BytesIO):
        def __init__(self, url: str) -> None:
            super().__init__(files.content(url))
            self.url = url
            self.headers: dict[str, str] = {}
            self.status = 200

        def info(self) -> dict[str, str]:
            return self.headers

    def urlretrieve(url: Any, filename: Any = None, *_: Any, **__: Any) -> tuple[str, dict[str, str]]:
        target = Path(filename or Path(address(url)).name)
        target.write_bytes(files.content(address(url)))
        return str(target), {}

    module.urlopen = lambda url, *_, **__: Response(address(url))  # type: ignore[attr-defined]
    module.urlretrieve = urlretrieve  # type: ignore[attr-defined]


def _no_hashes(module: ModuleType) -> None:
    module.validate_file = lambda *_, **__: True  # type: ignore[attr-defined]


def _no_windows(module: ModuleType) -> None:
    module.show = lambda *_, **__: module.close("all")  # type: ignore[attr-defined]


def _no_drawings(module: ModuleType) -> None:
    """Disable `plot_model`: it needs pydot and graphviz, and does not affect training."""
    module.plot_model = lambda *_, **__: None  # type: ignore[attr-defined]


def _weights(model: Any) -> None:
    """Keep a model's random weights in place of pretrained ones: a downloaded file is marked as a stub."""
    from tests.soak.keras_io import files

    load = model.load_weights

    @functools.wraps(load)
    def load_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        path = Path(str(filepath))
        if path.is_file() and path.read_bytes().startswith(files.NO_WEIGHTS):
            return None
        return load(self, filepath, *args, **kwargs)

    model.load_weights = load_weights


def _keras_3(module: ModuleType) -> None:
    _fit(module.TensorFlowTrainer)
    _predict(module.TensorFlowTrainer)


def _legacy(module: ModuleType) -> None:
    _fit(module.Model)
    _predict(module.Model)
    _weights(module.Model)


def _fit(owner: Any) -> None:
    import inspect

    fit = owner.fit
    signature = inspect.signature(fit)
    count = 0

    @functools.wraps(fit)
    def short(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        settings = Settings.read(os.environ)
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        asked = given.arguments["epochs"]
        if settings.epochs is not None:
            given.arguments["epochs"] = min(asked, given.arguments["initial_epoch"] + settings.epochs)
        if settings.steps is not None:
            given.arguments["steps_per_epoch"] = min(given.arguments["steps_per_epoch"] or 10**9, settings.steps)
        count += 1
        if settings.capture is not None and count == 1:
            from tests.soak.keras_io import capture

            capture.keep(given.arguments, Path(settings.capture))
            # The fit itself would be another pass over a shuffled dataset, in another order.
            raise SystemExit(0)
        history = fit(*given.args, **given.kwargs)
        if settings.record is not None:
            _record(Path(settings.record), self, history, asked, given.arguments["epochs"])
        return history

    owner.fit = short


def _predict(owner: Any) -> None:
    """Call the model instead of `predict`: scripts that draw a picture pixel by pixel call it a thousand times, with
    one row each.
    """
    predict = owner.predict
    count = 0

    @functools.wraps(predict)
    def quick(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        limit = Settings.read(os.environ).predicts
        if limit is None or count <= limit:
            return predict(self, x, *args, **kwargs)
        import tensorflow as tf

        return tf.nest.map_structure(lambda each: each.numpy(), self(x, training=False))

    owner.predict = quick


def _record(path: Path, model: Any, history: Any, asked: int, trained: int) -> None:
    dtypes: dict[str, int] = {}
    for layer in model._flatten_layers(include_self=False):
        dtypes[layer.compute_dtype] = dtypes.get(layer.compute_dtype, 0) + 1
    strategy = getattr(model, "distribute_strategy", None)
    line = {
        "model": type(model).__name__,
        "own_train_step": _own(model),
        "epochs_asked": asked,
        "epochs": trained,
        "history": {key: [_number(each) for each in values] for key, values in history.history.items()},
        "layers": dtypes,
        "optimizer": type(model.optimizer).__name__,
        "replicas": getattr(strategy, "num_replicas_in_sync", 1),
    }
    with path.open("a") as file:
        print(json.dumps(line), file=file)


def _own(model: Any) -> bool:
    """Report whether the model has a `train_step` or `compute_loss` of its own."""
    names = ("train_step", "compute_loss", "test_step")
    theirs = (getattr(type(model), name, None) for name in names)
    return any(not getattr(each, "__module__", "").startswith(("keras.", "tf_keras.")) for each in theirs if each)


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _seeded_start() -> None:
    """Set the same random states for every script, so that plain Keras and the trainer can be compared."""
    run_path = runpy.run_path

    def seeded(path: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("run_name") == "__main__":
            for name in ("keras", "tf_keras"):
                if name in sys.modules:
                    sys.modules[name].utils.set_random_seed(_SEED)
        return run_path(path, *args, **kwargs)

    runpy.run_path = seeded  # type: ignore[assignment]


def _authors_files() -> None:
    opened = builtins.open

    def local(file: Any, *args: Any, **kwargs: Any) -> Any:
        here = file.removeprefix(_AUTHORS) if isinstance(file, str) else file
        return opened(here, *args, **kwargs)

    builtins.open = local
