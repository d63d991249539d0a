"""Publishes the indexes of remote shards, so that no job has to build them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mptraining_records.index import dataset_index, remote_scan, sidecar
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage import storage
from mptraining_records.tfrecord.framing import BadRecord

State = Literal["written", "kept", "local", "compressed"]


@dataclass(frozen=True)
class Indexed:
    """One shard, and its sidecar: `written` now, `kept` since it fits, or none since it is local or compressed."""

    shard: ShardIndex
    state: State


@dataclass(frozen=True)
class IndexReport:
    """Every shard that was asked for, in the order of the URIs."""

    shards: tuple[Indexed, ...]

    def count(self, state: State) -> int:
        """How many shards are in this state."""
        return sum(each.state == state for each in self.shards)

    @property
    def records(self) -> int:
        return sum(each.shard.count for each in self.shards)

    @property
    def bytes(self) -> int:
        """The size of the objects."""
        return sum(each.shard.object.size for each in self.shards)

    @property
    def damaged(self) -> tuple[BadRecord, ...]:
        """Frames that could not be followed; payloads were not read."""
        return tuple(bad for each in self.shards for bad in each.shard.damaged)


def publish(
    patterns: Sequence[str],
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> IndexReport:
    """Writes the sidecar of every remote shard that matches and has none that fits, or of every one with `force`.

    `progress` gets the bytes read and those to read. Raises InvalidData when a pattern matches nothing or a file is no
    TFRecord file, and for a bucket that may not be written to.
    """
    objects = dataset_index.find(patterns)
    remote = [object for object in objects if storage.is_remote(object.uri)]
    kept = {} if force else sidecar.load_all(remote)
    found = {uri: Indexed(shard, "kept") for uri, shard in kept.items()}
    for shard in remote_scan.scan([object for object in remote if object.uri not in kept], progress=progress):
        if shard.expanded is None:
            sidecar.save(shard)
        found[shard.object.uri] = Indexed(shard, "compressed" if shard.expanded else "written")
    for object in objects:
        if object.uri not in found:
            shard = dataset_index.of_local(object)
            found[object.uri] = Indexed(shard, "compressed" if shard.expanded else "local")
    return IndexReport(tuple(found[object.uri] for object in objects))
