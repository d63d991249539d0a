"""Newest known resourceVersion of each cached object: which update of an object is the later one.

resourceVersions order updates only until an etcd backup is restored: then they go back, or jump, and deleted objects
exist again. A list is a consistent read of the API server: it supersedes all that was known before it began, whatever
the versions are. Updates from then on are compared with it by version, because a watch may be late.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class _Known(NamedTuple):
    version: int
    # The number of lists that had begun when this became known.
    lists: int


class Versions:
    """By uid, of existing objects and of the last `removed_kept` removed ones: a late page of a list may have those."""

    def __init__(self, removed_kept: int) -> None:
        self._removed_kept = removed_kept
        self._lists = 0
        self._existing: dict[str, _Known] = {}
        self._removed: OrderedDict[str, _Known] = OrderedDict()

    def begin_list(self) -> int:
        """Return the number of a list that begins now."""
        self._lists += 1
        return self._lists

    def is_later(self, uid: str, version: int, listed: int | None = None) -> bool:
        """Return whether this update of an object is later than what is known; `listed` is the number of its list."""
        known = self._existing.get(uid) or self._removed.get(uid)
        if known is None:
            return True
        if listed is not None and known.lists < listed:
            return version != known.version or uid in self._removed
        return version > known.version

    def is_removed(self, uid: str, listed: int | None = None) -> bool:
        """Return whether the object was removed, for an object of that list: after the list began."""
        known = self._removed.get(uid)
        return known is not None and (listed is None or known.lists >= listed)

    def known_before(self, uid: str, listed: int) -> bool:
        """Return whether the last update of an existing object became known before that list began."""
        known = self._existing.get(uid)
        return known is not None and known.lists < listed

    def version(self, uid: str) -> int:
        """Return the version of an existing object, else 0."""
        known = self._existing.get(uid)
        return known.version if known else 0

    def put(self, uid: str, version: int) -> None:
        self._removed.pop(uid, None)
        self._existing[uid] = _Known(version, self._lists)

    def remove(self, uid: str, version: int) -> None:
        self._existing.pop(uid, None)
        before = self._removed.get(uid)
        self._removed[uid] = _Known(max(version, before.version if before else 0), self._lists)
        self._removed.move_to_end(uid)
        while len(self._removed) > self._removed_kept:
            self._removed.popitem(last=False)

    def forget(self, uid: str) -> None:
        """Drop an object that no longer counts although it may exist."""
        self._existing.pop(uid, None)
