"""How a job's source comes into its pods: mounted from its ConfigMap, or prepared by an init container.

    spec.source                                   /source/files
    a ConfigMap                                   the ConfigMap itself, read only
    a ConfigMap, for a script                     a copy: a script may write beside itself
    a ConfigMap with an archive                   unpacked, once its SHA-256 is verified
    an archive                                    unpacked, once its SHA-256 is verified
    any of them with requirements                 unpacked or copied; the packages in /source/packages
    requirements alone                            nothing: the code and the file are in the image

The init container runs the trainer's own image, so that what pip installs fits its Python and leaves its packages
alone; see the trainer's `source`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mptraining_api.launch import CONFIG_MAP_FOLDER, PACKAGES_FOLDER, SOURCE_FOLDER
from mptraining_api.resolved_job import ResolvedJob

VOLUME = "mptraining-source"
CONFIG_MAP_VOLUME = "mptraining-source-files"
# Two folders below one volume: an init container that runs again (a node that restarts) replaces both as a whole.
ROOT = "/source"
FILES = f"{ROOT}/files"
PACKAGES = f"{ROOT}/packages"
CONFIG_MAP = "/source-files"

Fragments = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SourceParts:
    """What the source adds to a pod. `prepared` says whether an init container is needed."""

    prepared: bool = False
    volumes: Fragments = ()
    trainer_mounts: Fragments = ()
    init_mounts: Fragments = ()
    trainer_environment: dict[str, str] = field(default_factory=dict)
    init_environment: dict[str, str] = field(default_factory=dict)
    # What is to be found before all other packages.
    python_path: str = ""


def source_parts(job: ResolvedJob) -> SourceParts:
    """Volumes, mounts and variables for the job's source; all empty when its code is in the image."""
    source = job.source
    if source is None or not (source.config_map or source.archive or source.requirements):
        return SourceParts()
    config_map = {"name": source.config_map.name} if source.config_map else None
    packed = source.config_map is not None and source.config_map.sha256 is not None
    if config_map and not packed and not source.requirements and not job.program.script:
        return SourceParts(
            volumes=({"name": VOLUME, "configMap": config_map},),
            trainer_mounts=({"name": VOLUME, "mountPath": FILES, "readOnly": True},),
            trainer_environment={SOURCE_FOLDER: FILES},
        )
    mount = {"name": VOLUME, "mountPath": ROOT}
    volumes: Fragments = ({"name": VOLUME, "emptyDir": {}},)
    init_mounts: Fragments = (mount,)
    trainer = {SOURCE_FOLDER: FILES} if config_map or source.archive else {}
    init = dict(trainer)
    if config_map:
        volumes += ({"name": CONFIG_MAP_VOLUME, "configMap": config_map},)
        init_mounts += ({"name": CONFIG_MAP_VOLUME, "mountPath": CONFIG_MAP, "readOnly": True},)
        init[CONFIG_MAP_FOLDER] = CONFIG_MAP
    if source.requirements:
        init[PACKAGES_FOLDER] = PACKAGES
    return SourceParts(
        prepared=True,
        volumes=volumes,
        trainer_mounts=(mount,),
        init_mounts=init_mounts,
        trainer_environment=trainer,
        init_environment=init,
        python_path=PACKAGES if source.requirements else "",
    )
