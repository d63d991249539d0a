"""Finds the records of one object in one go: the edge around `frame_walk`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import Traffic
from mptraining_records.storage.storage import StoredObject
from mptraining_records.storage.windows import windows


def scan(object: StoredObject, *, expanded: StoredObject | None = None) -> ShardIndex:
    """The index of one object; a local file is mapped, a remote one streamed.

    `expanded` is the local file with the content of an object that is compressed. Raises InvalidData for what is no
    TFRecord file or was replaced, CompressedFile for a compressed one.
    """
    content = expanded or object
    walk = FrameWalk(replace(content, uri=object.uri))
    feed(walk, content)
    return replace(walk.finish(), object=object, expanded=expanded)


def feed(walk: FrameWalk, content: StoredObject, progress: Callable[[int], None] | None = None) -> None:
    """Feeds a whole object to a walk; of a remote one `progress` gets the bytes fed so far."""
    if not content.size:
        return
    if not storage.is_remote(content.uri):
        with storage.mapped(content) as whole:
            walk.feed(whole)
        return
    for _, start, window in windows([content], Traffic()):
        walk.feed(window)
        if progress:
            progress(start + len(window))
