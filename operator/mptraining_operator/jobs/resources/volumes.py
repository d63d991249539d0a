"""Volumes and mounts of a worker, and those of its source code; a job may add its own but not replace these.

/etc/mptraining        job.json, read only
/tmp                   HOME, temporary files, the disk cache; on the node's disk
/dev/shm               shared memory of NCCL and of multiprocessing; see `shared_memory`
/var/run/mptraining    the token for the progress endpoint, read only
/etc/mptraining-ca     the CA certificates to trust, if the settings name a ConfigMap; read only
/source                the program's code and packages; see `source_parts`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from mptraining_api.launch import CONFIG_MAP_FOLDER, PACKAGES_FOLDER, SOURCE_FOLDER
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolved_job import ResolvedAccelerator, ResolvedJob

JOB_FOLDER = "/etc/mptraining"
HOME = "/tmp"  # noqa: S108 - the pod's own
TOKEN_FOLDER = "/var/run/mptraining"  # noqa: S105 - a folder
TOKEN_FILE = f"{TOKEN_FOLDER}/token"
# The kubelet renews a token after 80 % of this time; the API server's minimum is 600.
TOKEN_SECONDS = 3600

OWN_PREFIX = "mptraining-"
_JOB = f"{OWN_PREFIX}job"
_TMP = f"{OWN_PREFIX}tmp"
_SHARED_MEMORY = f"{OWN_PREFIX}shm"
SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - the pod's own
_TOKEN = f"{OWN_PREFIX}token"
_AUTHORITIES = f"{OWN_PREFIX}ca"
AUTHORITIES_FOLDER = "/etc/mptraining-ca"

# Volume types whose data outlives the pod; the other types are per pod or read only.
_PERSISTENT = {"persistentVolumeClaim", "csi"}

Objects = list[dict[str, Any]]


def shared_memory(accelerator: ResolvedAccelerator) -> str:
    """Return the size limit of /dev/shm: 1 GiB per GPU, 1 GiB without GPUs.

    Docker's default of 64 MiB is too small for NCCL; NVIDIA recommends 1 GiB (`--shm-size=1g`, NCCL's troubleshooting
    guide). The limit reserves no memory; pages in use count against the container's memory limit.
    """
    return f"{accelerator.count_per_worker if accelerator.kind == 'gpu' else 1}Gi"


def own_volumes(
    job_config_map: str, accelerator: ResolvedAccelerator, audience: str | None, ca_config_map: str | None
) -> Objects:
    """Return the volumes of every worker, the first with job.json; that of the token only with an `audience`."""
    shared = {"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory(accelerator)}}
    job = {"name": _JOB, "configMap": {"name": job_config_map}}
    volumes: Objects = [job, {"name": _TMP, "emptyDir": {}}, shared]
    if audience is not None:
        token = {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
        volumes.append({"name": _TOKEN, "projected": {"sources": [{"serviceAccountToken": token}]}})
    if ca_config_map is not None:
        volumes.append({"name": _AUTHORITIES, "configMap": {"name": ca_config_map}})
    return volumes


def own_mounts(*, token: bool, ca_bundle: bool) -> Objects:
    """Return the mounts of the trainer; those of the init container are the same without the token."""
    mounts: Objects = [
        {"name": _JOB, "mountPath": JOB_FOLDER, "readOnly": True},
        {"name": _TMP, "mountPath": HOME},
        {"name": _SHARED_MEMORY, "mountPath": SHARED_MEMORY_FOLDER},
    ]
    if token:
        mounts.append({"name": _TOKEN, "mountPath": TOKEN_FOLDER, "readOnly": True})
    if ca_bundle:
        mounts.append({"name": _AUTHORITIES, "mountPath": AUTHORITIES_FOLDER, "readOnly": True})
    return mounts


def check_collisions(template: PodTemplate, generated: Objects) -> None:
    """Raise InvalidSpec if a volume or mount of the job would hide one of the operator's mounts in `generated`."""
    for index, volume in enumerate(template.volumes or ()):
        if str(volume.get("name", "")).startswith(OWN_PREFIX):
            raise InvalidSpec(
                f"spec.podTemplate.volumes[{index}].name",
                f"{volume['name']!r}",
                expected=f"a name that does not begin with {OWN_PREFIX!r}, as the operator's own do",
                next_step="Rename the volume, in volumeMounts too.",
            )
    for index, mount in enumerate(template.volume_mounts or ()):
        path = str(mount.get("mountPath", ""))
        for other in generated:
            if _collide(path, other["mountPath"], read_only=other.get("readOnly", False)):
                raise InvalidSpec(
                    f"spec.podTemplate.volumeMounts[{index}].mountPath",
                    f"{path!r} takes the place of the operator's {other['mountPath']}",
                    expected="a folder of its own, such as /mnt/data",
                    next_step="Mount it there and name that path in the job.",
                )


def outlives_pod(uri: str, template: PodTemplate) -> bool:
    """Return whether data at `uri` outlives the pod: in a bucket, or on a mounted claim or CSI volume.

    A relative path is resolved against the images' working folder, /tmp.
    """
    if "://" in uri:
        return True
    path = _absolute(uri if uri.startswith("/") else f"{HOME}/{uri}")
    mounts = {_absolute(str(mount.get("mountPath", ""))): mount.get("name") for mount in template.volume_mounts or ()}
    above = [folder for folder in mounts if path.is_relative_to(folder)]
    name = mounts[max(above, key=lambda folder: len(folder.parts))] if above else None
    volume = next((volume for volume in template.volumes or () if volume.get("name") == name), {})
    return not volume.keys().isdisjoint(_PERSISTENT)


def _collide(path: str, mounted: str, *, read_only: bool) -> bool:
    """Return whether `path` is `mounted`, a parent of it, or a child of it if `mounted` is read only."""
    theirs, ours = _absolute(path), PurePosixPath(mounted)
    return ours.is_relative_to(theirs) or (read_only and theirs.is_relative_to(ours))


def _absolute(path: str) -> PurePosixPath:
    """Return an absolute path; pathlib treats two leading slashes as another root, Linux does not."""
    return PurePosixPath("/" + path.strip("/"))


VOLUME = "mptraining-source"
CONFIG_MAP_VOLUME = "mptraining-source-files"
# Two folders in one volume: an init container that runs again, after a node restart, replaces both as a whole.
ROOT = "/source"
FILES = f"{ROOT}/files"
PACKAGES = f"{ROOT}/packages"
CONFIG_MAP = "/source-files"

Fragments = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SourceParts:
    """The parts that the source adds to a pod. `prepared`: whether an init container is needed."""

    prepared: bool = False
    volumes: Fragments = ()
    trainer_mounts: Fragments = ()
    init_mounts: Fragments = ()
    trainer_environment: dict[str, str] = field(default_factory=dict)
    init_environment: dict[str, str] = field(default_factory=dict)
    # The folder of the installed requirements, for PYTHONPATH.
    python_path: str = ""


def source_parts(job: ResolvedJob) -> SourceParts:
    """Return volumes, mounts and variables for the job's source; all empty if its code is in the image."""
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
