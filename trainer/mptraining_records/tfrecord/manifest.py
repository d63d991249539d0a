"""Manifest of a split, `<name>-manifest.json` in the folder of its shards: features, label, classes and files."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.features import Feature
from mptraining_storage import storage

SUFFIX = "manifest.json"
# Above this correlation of neighbouring labels records look sorted; a random order of 100 records stays below 0.4.
_SORTED = 0.5


class File(BaseModel):
    """One shard: its name in the manifest's folder, records, size in bytes, and the CRC32C of its whole content."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    records: int
    bytes: int
    crc32c: int


class Manifest(BaseModel):
    """One split of a data set; `classes` are the names of the integer labels.

    `class_counts` has the records of each class, `class_weight` the weights that give every class the same sum, as
    `training.classWeight` takes them. `label_correlation` is that of neighbouring records: 0 in random order, 1 where
    the records are sorted by label. `permutation_seed` is None if the records are in the order of their source.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    name: str
    features: tuple[Feature, ...]
    label: str | None = None
    classes: tuple[str, ...] | None = None
    records: int
    files: tuple[File, ...]
    class_counts: tuple[int, ...] | None = None
    class_weight: dict[str, float] | None = None
    label_correlation: float | None = None
    permutation_seed: int | None = None

    @property
    def is_sorted_by_label(self) -> bool:
        """Whether most neighbouring records have the same label."""
        return self.label_correlation is not None and self.label_correlation > _SORTED


def uri_of(folder: str, name: str) -> str:
    """Return the URI of the manifest of the split `name`."""
    return storage.join(folder, f"{name}-{SUFFIX}")


def save(folder: str, manifest: Manifest) -> str:
    """Write the manifest in one step and return its URI."""
    uri = uri_of(folder, manifest.name)
    storage.write(uri, manifest.model_dump_json(indent=1).encode())
    return uri


def load(uri: str) -> Manifest:
    """Read one manifest; raises InvalidData if it is not valid."""
    try:
        return Manifest.model_validate_json(storage.read(uri))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidData(
            uri, f"not a manifest: {field}: {first['msg']}", next_step="Convert the data again, or delete it"
        ) from error


def find(patterns: Sequence[str]) -> Manifest | None:
    """Return the merged manifest of the shards that the patterns match; None if no manifest names them.

    A pattern may match a part of a split, or several splits and folders: the result lists all matched files. Raises
    InvalidData if their features, label or classes differ.
    """
    parts = list(find_each(patterns))
    if not parts:
        return None
    uri, first = parts[0]
    for other_uri, other in parts[1:]:
        for field in ("features", "label", "classes"):
            if getattr(other, field) != getattr(first, field):
                raise InvalidData(
                    other_uri,
                    f"its {field} differ from those of {uri}",
                    next_step="Name the splits one by one in data.train and data.validation",
                )
    if len(parts) > 1:
        known = [part.label_correlation for _, part in parts if part.label_correlation is not None]
        worst = max(known, default=None)
        changes = {"class_counts": None, "class_weight": None, "label_correlation": worst, "permutation_seed": None}
        first = first.model_copy(update=changes)
    files = {(uri, file.name): file for uri, part in parts for file in part.files}
    return first.model_copy(
        update={
            "files": tuple(files[key] for key in sorted(files)),
            "records": sum(file.records for file in files.values()),
        }
    )


def find_each(patterns: Iterable[str]) -> Iterable[tuple[str, Manifest]]:
    """Yield each manifest in a pattern's folder with its URI, reduced to the files that the pattern matches."""
    for pattern in dict.fromkeys(patterns):
        folder, _, name = pattern.rpartition("/")
        for stored in storage.glob_or_empty(f"{folder}/*{SUFFIX}" if folder else f"*{SUFFIX}"):
            manifest = load(stored.uri)
            files = tuple(file for file in manifest.files if file.name == name or fnmatch.fnmatchcase(file.name, name))
            if files:
                yield stored.uri, manifest.model_copy(update={"files": files})
