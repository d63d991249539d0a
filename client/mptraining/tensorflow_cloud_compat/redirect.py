"""Redirection of the real tensorflow-cloud package (0.1.16, its last release) to MPTrainingJobs.

The package's `run` looks up its helpers as attributes of modules. They are replaced by helpers that package the
program and create an MPTrainingJob, without Docker and Google credentials.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from mptraining.tensorflow_cloud_compat.arguments import check_arguments
from mptraining.tensorflow_cloud_compat.run import Shipped, Target, launch, ship
from mptraining_api.problems import InvalidProgram
from mptraining_api.tensorflow_cloud.machine_configs import COMMON_MACHINE_CONFIGS, AcceleratorType, MachineConfig

_TUNER = "TUNER_ID_"


def redirect(target: Target) -> None:
    """Replace the package's helpers; a second call changes the target. Raises InvalidProgram without the package."""
    try:
        core = {name: import_module(f"tensorflow_cloud.core.{name}") for name in _PATCHES}
    except ImportError as error:
        step = "Install it, or use mptraining.tensorflow_cloud instead, which does not need it."
        raise InvalidProgram("tensorflow_cloud", f"cannot be imported: {error}", next_step=step) from error
    route = _Route(target)
    for name, patch in _PATCHES.items():
        patch(core[name], route)


class _Route:
    """State of one call of the package's `run`, shared by the helpers that it calls one after the other."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.distributed = False
        # Keyed by the image URI that is returned to tensorflow-cloud; run_cloudtuner deploys one image several times.
        self.shipped: dict[str, tuple[Shipped, dict[str, Any]]] = {}

    def preprocessed(self, *_arguments: Any, return_file_descriptor: bool = False, **_keywords: Any) -> Any:
        """Replace `get_preprocessed_entry_point`: the program is not wrapped, since the trainer sets the strategy."""
        names = ("entry_point", "chief_config", "worker_config", "worker_count", "distribution_strategy")
        given = dict(zip(names, _arguments, strict=False)) | _keywords
        self.distributed = given.get("distribution_strategy") == "auto"
        descriptor, path = tempfile.mkstemp(suffix=".py")
        if return_file_descriptor:
            return path, descriptor
        os.close(descriptor)
        return path

    def deploy(
        self,
        image_uri: str,
        chief_config: Any,
        worker_count: int,
        worker_config: Any,
        entry_point_args: list[str] | None,
        enable_stream_logs: bool,
        job_labels: Mapping[str, str] | None = None,
        service_account: str | None = None,
    ) -> str:
        """Replace `deploy_job`: start the job and return its name."""
        shipped, given = self.shipped[image_uri]
        words = list(entry_point_args or [])
        tuners = [word for word in words if word.startswith(_TUNER)]
        arguments = check_arguments(
            **given,
            chief_config=_machine(chief_config),
            worker_config=_machine(worker_config),
            worker_count=worker_count,
            entry_point_args=[word for word in words if word not in tuners],
            stream_logs=enable_stream_logs,
            job_labels=job_labels,
            service_account=service_account,
        )
        job = launch(
            arguments,
            _with(shipped, arguments.entry_point_args),
            _with_tuner_id(self.target, tuners),
            stream_logs=enable_stream_logs,
        )
        return str(job["job_id"])

    def builder(self, base: type) -> type:
        """Replace both container builders: package the program, and create the temporary files that `run` deletes."""
        route = self

        class Builder(base):  # type: ignore[misc]
            def get_docker_image(self, *_arguments: Any, **_keywords: Any) -> str:
                self.docker_file_descriptor, self.docker_file_path = tempfile.mkstemp()
                self.tar_file_descriptor, self.tar_file_path = tempfile.mkstemp()
                given: dict[str, Any] = {
                    "entry_point": self.entry_point,
                    "requirements_txt": self.requirements_txt,
                    "docker_config": self.docker_config,
                    "distribution_strategy": "auto" if route.distributed else None,
                }
                route.distributed = False
                rest: dict[str, Any] = {
                    "chief_config": "auto",
                    "worker_config": "auto",
                    "worker_count": 0,
                    "entry_point_args": None,
                }
                arguments = check_arguments(**given, **rest, stream_logs=False, job_labels=None, service_account=None)
                shipped = ship(self.entry_point, arguments, folder=None, target=route.target)
                image = self.docker_config.image or arguments.image or f"mptraining/{shipped.package.sha256}"
                route.shipped[image] = shipped, given
                return str(image)

        return Builder


def _with(shipped: Shipped, words: tuple[str, ...]) -> Shipped:
    """Return the program with these arguments, which tensorflow-cloud passes only to `deploy_job`."""
    program = dict(shipped.package.program)
    if "script" in program and words:
        program["script"] = {**program["script"], "arguments": list(words)}
    return replace(shipped, package=replace(shipped.package, program=program))


def _with_tuner_id(target: Target, tuners: list[str]) -> Target:
    """Return the target with the tuner's id as an environment variable.

    tensorflow-cloud passes it as the first argument, which breaks argparse.
    """
    if not tuners:
        return target
    template = dict(target.spec.get("podTemplate") or {})
    variable = {"name": "KERASTUNER_TUNER_ID", "value": tuners[-1]}
    template["env"] = [*(template.get("env") or ()), variable]
    return replace(target, spec={**target.spec, "podTemplate": template})


def _machine(config: Any) -> MachineConfig | str:
    """Convert the package's MachineConfig to ours; common configs become those of COMMON_MACHINE_CONFIGS.

    "auto" is returned unchanged: run_cloudtuner passes it on, although AI Platform would have rejected it.
    """
    if isinstance(config, str):
        return config
    kind = AcceleratorType(config.accelerator_type.value)
    shape = (config.cpu_cores, config.memory, kind, config.accelerator_count)
    for each in COMMON_MACHINE_CONFIGS.values():
        if shape == (each.cpu_cores, each.memory, each.accelerator, each.accelerator_count):
            return each
    return MachineConfig(*shape)


def _preprocess(module: ModuleType, route: _Route) -> None:
    module.get_preprocessed_entry_point = route.preprocessed  # type: ignore[attr-defined]


def _containerize(module: ModuleType, route: _Route) -> None:
    for name in ("LocalContainerBuilder", "CloudContainerBuilder"):
        setattr(module, name, route.builder(module.ContainerBuilder))


def _deploy(module: ModuleType, route: _Route) -> None:
    module.deploy_job = route.deploy  # type: ignore[attr-defined]


def _gcp(module: ModuleType, _route: _Route) -> None:
    """Skip the lookup of a Google Cloud project, and the validation by AI Platform's table of machines."""
    module.get_project_name = lambda: "mptraining"  # type: ignore[attr-defined]
    module.validate_machine_configuration = lambda *_: None  # type: ignore[attr-defined]
    # tensorflow-cloud accepted only TensorFlow 2.1 for TPU jobs.
    module.get_cloud_tpu_supported_tf_versions = _Any  # type: ignore[attr-defined]


class _Any:
    def __contains__(self, _: object) -> bool:
        return True


def _validate(module: ModuleType, _route: _Route) -> None:
    """Skip the check that a notebook names a bucket."""
    before: Any = getattr(module._validate_other_args, "before", module._validate_other_args)

    def other_args(args: Any, stream_logs: Any, bucket: Any, _called_from_notebook: Any) -> None:
        before(args, stream_logs, bucket, False)

    other_args.before = before  # type: ignore[attr-defined]
    module._validate_other_args = other_args  # type: ignore[attr-defined]


_PATCHES = {
    "preprocess": _preprocess,
    "containerize": _containerize,
    "deploy": _deploy,
    "gcp": _gcp,
    "validate": _validate,
}
