"""The job's precision policy and strategy scope around a script, both restored after `clear_session()`.

Keras' `clear_session` resets TensorFlow's default graph, which has the stack of strategy scopes; Keras 3 also resets
the global policy. Without this module every model built afterwards trains on one of the job's devices, in float32, and
closing the scope at the end fails (IndexError: pop from empty list).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mptraining_trainer.forked_child import drop_in_children
from mptraining_trainer.keras_backend import Keras

_NAME = "clear_session"


@contextmanager
def job_scope(generations: Sequence[Keras], policy: str, strategy: Any) -> Iterator[None]:
    """Set `policy` for these generations of Keras and open the scope of `strategy`; None opens none.

    After `clear_session`, Keras 3 has the job's policy again, and a policy that the script had set is lost, as it is
    without this project; tf_keras keeps the script's policy.
    """
    scope = _Scope(strategy)
    policies = [_GlobalPolicy(generation, policy) for generation in generations]
    with contextlib.ExitStack() as wrapped:
        for dtype_policy in policies:
            dtype_policy.set()
            wrapped.callback(drop_in_children(dtype_policy.reset))
            wrapped.enter_context(_kept_by_clear_session(dtype_policy, scope))
        scope.enter()
        try:
            yield
        finally:
            scope.leave()


class _GlobalPolicy:
    """The job's policy as the global one of a generation of Keras."""

    def __init__(self, keras: Keras, policy: str) -> None:
        self.keras = keras
        self._policy = policy
        self._set: Any = None

    def set(self) -> None:
        self.keras.set_policy(self._policy)
        self._set = self.keras.module.mixed_precision.global_policy()

    def reset(self) -> None:
        """Set Keras' default if the script has set no policy of its own since."""
        if self.keras.module.mixed_precision.global_policy() is self._set:
            self.keras.set_policy("float32")


class _Scope:
    """A scope of `strategy` that can be closed and opened again."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._open: Any = None

    def enter(self) -> None:
        if self._strategy is not None:
            self._open = self._strategy.scope()
            self._open.__enter__()

    def leave(self) -> None:
        scope, self._open = self._open, None
        if scope is not None:
            # The script may have reset the default graph with TensorFlow's own function; then no scope is open.
            with contextlib.suppress(IndexError, RuntimeError):
                scope.__exit__(None, None, None)


@contextmanager
def _kept_by_clear_session(policy: _GlobalPolicy, scope: _Scope) -> Iterator[None]:
    keras = policy.keras
    original = getattr(keras.module.backend, _NAME)

    @functools.wraps(original)
    def clear_session(*arguments: Any, **keywords: Any) -> None:
        scope.leave()
        try:
            original(*arguments, **keywords)
        finally:
            scope.enter()
        if not keras.legacy:
            policy.set()

    _replace(keras, original, clear_session)
    try:
        yield
    finally:
        _replace(keras, clear_session, original)


def _replace(keras: Keras, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Replace the function in every module of Keras that exports it: `backend`, `utils`, and those of `tf.keras`."""
    package = keras.module.__name__
    for name, module in list(sys.modules.items()):
        if name.split(".", 1)[0] == package and vars(module).get(_NAME) is old:
            setattr(module, _NAME, new)
