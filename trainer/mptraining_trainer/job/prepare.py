"""The command `source`: fetch, verify and extract a job's source and install its requirements before training.

It runs in an init container, where each worker has its own folder; a second run replaces the result of the first.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mptraining_api.launch import CONFIG_MAP_FOLDER, PACKAGES_FOLDER, SOURCE_FOLDER
from mptraining_api.problems import InvalidData, InvalidSpec
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import CONFIG_MAP_ARCHIVE, Archive, ConfigMapSource
from mptraining_storage import local, storage
from mptraining_trainer.job import requirements
from mptraining_trainer.job.archive import MOST_ARCHIVE_BYTES, unpack
from mptraining_trainer.job.requirements import install


def prepare(job: ResolvedJob, environment: Mapping[str, str]) -> str:
    """Prepare the source in the folder that `environment` names; return a line for the log. Raises Problem."""
    source = job.source
    if source is None:
        return "the job has no source to prepare"
    folder = Path(environment.get(SOURCE_FOLDER, "."))
    results = []
    if source.archive is not None:
        results.append(_fetch(source.archive, _empty_source_folder(environment)))
    elif source.config_map is not None:
        mounted = Path(_required(environment, CONFIG_MAP_FOLDER))
        results.append(_fetch_config_map(source.config_map, mounted, _empty_source_folder(environment)))
    if source.requirements is not None:
        packages, cache = Path(_required(environment, PACKAGES_FOLDER)), environment.get(requirements.CACHE_VARIABLE)
        taken = install(source.requirements, folder, packages, cache=Path(cache) if cache else None)
        results.append(f"{source.requirements} {f'taken from {cache}' if taken else 'installed'}")
    return "; ".join(results) or "nothing to do"


def _empty_source_folder(environment: Mapping[str, str]) -> Path:
    folder = Path(_required(environment, SOURCE_FOLDER))
    local.delete_folder(folder)
    return folder


def _required(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise InvalidSpec(name, "not set", expected="a folder", next_step="Set it as the launch does.")
    return environment[name]


def _fetch(archive: Archive, folder: Path) -> str:
    stored = storage.stat(archive.uri)
    if stored.size > MOST_ARCHIVE_BYTES:
        raise InvalidData(
            archive.uri,
            f"{stored.size:,} bytes",
            expected=f"a source archive of at most {MOST_ARCHIVE_BYTES >> 20} MiB",
            next_step="Leave data out of it; data belongs into a bucket.",
        )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "archive")
        storage.download(archive.uri, path)
        return _unpack(path, folder, archive.uri, archive.sha256, field="spec.source.archive.sha256")


def _fetch_config_map(config_map: ConfigMapSource, mounted: Path, folder: Path) -> str:
    if config_map.sha256 is None:
        return _copy(mounted, folder)
    path = mounted / CONFIG_MAP_ARCHIVE
    if not path.is_file():
        raise InvalidSpec(
            "spec.source.configMap.name",
            f"ConfigMap {config_map.name!r} has no entry {CONFIG_MAP_ARCHIVE!r}",
            expected="the archive whose sha256 the job names",
            next_step="Put it under binaryData, or leave sha256 out if the entries are the files themselves.",
        )
    where = f"{CONFIG_MAP_ARCHIVE} in ConfigMap {config_map.name}"
    return _unpack(path, folder, where, config_map.sha256, field="spec.source.configMap.sha256")


def _unpack(path: Path, folder: Path, where: str, sha256: str, *, field: str) -> str:
    """Verify the sha256, then extract, so that write access to the bucket does not permit running code in the job."""
    with local.translate_errors(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise InvalidSpec(
            field,
            f"{where} has {digest}",
            expected=sha256,
            next_step="The archive is not the one the job names: upload that one, or write its sha256sum.",
        )
    extraction = unpack(path, folder, where)
    return f"{len(extraction.files):,} files, {extraction.size:,} bytes from {where}"


def _copy(mounted: Path, folder: Path) -> str:
    """Copy the files of a mounted ConfigMap: links into a hidden folder, `..data`, without subfolders."""
    local.make_folder(folder)
    copied = 0
    with local.translate_errors(mounted):
        for path in sorted(mounted.iterdir()):
            if path.is_file() and not path.name.startswith(".."):
                shutil.copyfile(path, folder / path.name)
                copied += 1
    return f"{copied:,} files from the ConfigMap"
