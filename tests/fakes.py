"""Fakes that tests of several packages share."""

from __future__ import annotations

from typing import Any

from mptraining_api.resolve.runtime_settings import Runtime


class Clock:
    """A clock that changes only when a test assigns or adds to `now`, in seconds."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Notices(list[str]):
    """Collects notices as `level topic: message`."""

    def __call__(self, topic: str, message: str, *, level: str = "Info") -> None:
        self.append(f"{level} {topic}: {message}")

    def of(self, topic: str) -> str:
        """Return the message of the only notice with this topic."""
        (found,) = [each.split(": ", 1)[1] for each in self if each.split(": ", 1)[0].endswith(f" {topic}")]
        return found

    @property
    def topics(self) -> set[str]:
        return {each.split(": ", 1)[0].split(" ", 1)[1] for each in self}


def with_image(image: str, **default: Any) -> dict[str, Runtime]:
    """Return the runtimes of a cluster with one image; `default` are further fields of the runtime of that name."""
    return {"default": Runtime.parse({"images": dict.fromkeys(("cpu", "gpu", "tpu"), image), **default})}
