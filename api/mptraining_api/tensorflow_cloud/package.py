"""Submodules of the package `tensorflow_cloud`, and error messages for its names that have no equivalent.

`mptraining.tensorflow_cloud` and `inside_job` replace the package. `make_package` converts them to packages, so that
`from tensorflow_cloud import CloudTuner` and `import tensorflow_cloud.tuner.tuner` fail with a message that names the
alternative instead of "cannot import name". Standard library only.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

# Submodules with the names that they have, which are those of the replacement module.
SUBMODULES: dict[str, tuple[str, ...]] = {
    "core": (),
    "core.docker_config": ("DockerConfig",),
    "core.experimental": (),
    "core.machine_config": ("AcceleratorType", "COMMON_MACHINE_CONFIGS", "MachineConfig", "is_tpu_config"),
    "core.run": ("remote", "run", "run_cloudtuner"),
    "tuner": (),
    "utils": (),
    "version": ("__version__",),
}
_TUNER = (
    "write keras_tuner.BayesianOptimization(build_model, objective=…, max_trials=…, hyperparameters=…, directory=…), "
    "or another tuner of keras_tuner, in the script, without project_id, region and study_id. For trials at the same "
    "time, write an MPTrainingSweep (mptj sweep)"
)
_VIZIER = "it needs AI Platform Vizier, which is shut down"
_FIT = (
    "it trained a model of the notebook's process: write a function that returns the compiled model, and submit a job "
    "with program: {function: {entryPoint: module:function}}, or call tfc.run with a script that calls model.fit"
)
_IMAGES = "it builds or deploys container images for AI Platform, which is shut down: tfc.run ships the program as text"
# Names below tensorflow_cloud, in 0.1.16 and its last commit, that have no equivalent, with the reason or alternative.
REMOVED_NAMES = {
    "CloudOracle": f"{_VIZIER}: write keras_tuner.oracles.BayesianOptimizationOracle or another of keras_tuner's",
    "CloudTuner": f"{_VIZIER}: {_TUNER}",
    "core.containerize": _IMAGES,
    "core.deploy": _IMAGES,
    "core.experimental.models": (
        "run_models and run_experiment_cloud train models of TF Model Garden, which needs TensorFlow of its own: call "
        "tfc.run with a script that makes the model by tf.keras.applications, or calls train_lib.run_experiment"
    ),
    "core.gcp": "the job runs on machines of the cluster, and needs no project, region or zone",
    "core.preprocess": _IMAGES,
    "core.validate": "tfc.run checks its arguments itself",
    "tuner.cloud_fit_client": _FIT,
    "tuner.cloud_fit_remote": _FIT,
    "tuner.cloud_fit_utils": _FIT,
    "tuner.constants": _VIZIER,
    "tuner.optimizer_client": f"{_VIZIER}: {_TUNER}",
    "tuner.tuner": f"{_VIZIER}: {_TUNER}",
    "tuner.utils": f"it translates studies for AI Platform Vizier, which is shut down: {_TUNER}",
    "tuner.vizier_client": f"{_VIZIER}: {_TUNER}",
    "tuner.vizier_client_interface": f"{_VIZIER}: {_TUNER}",
    "tuner.vizier_client_ucaip_interface": f"{_VIZIER}: {_TUNER}",
    "utils.google_api_client": "no Google API is called: tfc.run talks to the cluster",
    "utils.tf_utils": "it reads TensorBoard logs: the run folder has them (tensorboard/); job.history has the curves",
}
_PACKAGE = "tensorflow_cloud"
_MARK = "__replaces_tensorflow_cloud__"


def removed_message(name: str) -> str | None:
    """Return the error message for a name in REMOVED_NAMES; None for any other name."""
    return f"{_PACKAGE} has no {name} here: {REMOVED_NAMES[name]}." if name in REMOVED_NAMES else None


def load_submodule(module: str, name: str) -> Any:
    """Return a submodule, as `__getattr__` of a replacement module. Raises AttributeError with the message."""
    if name in SUBMODULES:
        return importlib.import_module(f"{module}.{name}")
    raise AttributeError(removed_message(name) or f"module {module!r} has no attribute {name!r}")


def make_package(module: ModuleType) -> None:
    """Convert a module that replaces `tensorflow_cloud` to a package."""
    # The path is empty so that no submodule of an installed tensorflow_cloud is imported.
    module.__path__ = []
    setattr(module, _MARK, True)
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of the submodules of the modules that `make_package` converted, under their names in `sys.modules`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        root, name = _below(fullname)
        if root is None:
            return None
        if name in REMOVED_NAMES:
            _refuse(name)
        if name not in SUBMODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        del spec

    def exec_module(self, module: ModuleType) -> None:
        root, name = _below(module.__name__)
        for each in SUBMODULES[name]:
            setattr(module, each, getattr(root, each))

        def get_attribute(attribute: str) -> Any:
            if f"{name}.{attribute}" in SUBMODULES:
                return importlib.import_module(f"{module.__name__}.{attribute}")
            message = removed_message(f"{name}.{attribute}")
            if message is None and attribute in REMOVED_NAMES:
                message = removed_message(attribute)
            raise AttributeError(message or f"module {module.__name__!r} has no attribute {attribute!r}")

        module.__getattr__ = get_attribute  # type: ignore[method-assign]


def _below(fullname: str) -> tuple[ModuleType | None, str]:
    """Return the replacement module above `fullname`, or None, and the rest of the name."""
    root = fullname
    while "." in root:
        root = root.rpartition(".")[0]
        module = sys.modules.get(root)
        # Every failed import of the process comes here, so that the module's own `__getattr__` must not be called.
        if module is not None and _MARK in getattr(module, "__dict__", ()):
            return module, fullname[len(root) + 1 :]
    return None, fullname


def _refuse(name: str) -> NoReturn:
    raise ImportError(removed_message(name), name=f"{_PACKAGE}.{name}")
