"""Cache of reviews of bearer tokens by the API server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Result = TypeVar("Result")


class TooManyReviews(Exception):
    """As many requests wait for a review as may wait."""


class ReviewCache(Generic[Result]):
    """Reviews in threads, with their results for a time. For one event loop.

    `at_once` reviews run at the same time, and up to `most_waiting` wait for it: all that an unauthenticated client can
    cause. Requests with the same token share one review. `clock` is in seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        name: str,
        at_once: int,
        most_cached: int,
        most_waiting: int | None = None,
    ) -> None:
        self._clock = clock
        self._most_cached = most_cached
        self._most_waiting = most_waiting
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix=name)
        # End and result by SHA-256 of the token, so that a memory dump contains no tokens.
        self._results: dict[bytes, tuple[float, Result]] = {}
        self._running: dict[bytes, asyncio.Task[Result]] = {}

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._results)

    async def get(
        self,
        token: str,
        scope: str,
        review: Callable[[], Result],
        until: Callable[[Result], float],
        *,
        longer: Callable[[Result], float] = lambda _: 0.0,
    ) -> Result:
        """Return the result of `review` for the token in that scope; it is valid until the time `until(result)`.

        For this request a known result is valid for `longer(result)` seconds more.

        Raises TooManyReviews, and the exceptions of `review`.
        """
        digest = hashlib.sha256(f"{scope}\n{token}".encode("utf-8", "surrogateescape")).digest()
        found = self._results.get(digest)
        if found is not None and self._clock() < found[0] + longer(found[1]):
            return found[1]
        running = self._running.get(digest)
        if running is None:
            if self._most_waiting is not None and len(self._running) >= self._most_waiting:
                raise TooManyReviews
            running = asyncio.get_running_loop().create_task(self._review(digest, review, until))
            self._running[digest] = running
            running.add_done_callback(lambda ended: self._end(digest, ended))
        # A client that leaves does not end the review of the others.
        return await asyncio.shield(running)

    async def _review(self, digest: bytes, review: Callable[[], Result], until: Callable[[Result], float]) -> Result:
        result = await asyncio.get_running_loop().run_in_executor(self._threads, review)
        end = until(result)
        if end > self._clock():
            # The oldest comes first.
            self._results.pop(digest, None)
            if len(self._results) >= self._most_cached:
                del self._results[next(iter(self._results))]
            self._results[digest] = end, result
        return result

    def _end(self, digest: bytes, ended: asyncio.Task[Result]) -> None:
        self._running.pop(digest, None)
        if not ended.cancelled():
            # Otherwise asyncio reports an exception for which no client waits any more.
            ended.exception()

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
