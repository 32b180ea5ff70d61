"""Compiles everything that learning calls before the first message arrives, or loads it from numba's cache."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numba.core import event

from streampca.pca import learning
from streampca.pca.learning import LearningConfig
from streampca.pca.state import State

_MESSAGES = 20  # sizes are not part of the compiled code, so small ones will do


def compile_kernels(config: LearningConfig, on_compile: Callable[[], None] = lambda: None) -> None:
    """Learn two small blocks in the way that `config` asks for, so that all of its kernels are in memory.

    `on_compile` is called once, when numba starts to compile; not if everything is loaded from the cache.
    """
    d = 3 if config.exact else learning.EXACT + 1
    small = replace(config, dimensions=d, components=2, oversampling=0, warm_up=_MESSAGES // 2)
    V, retention = np.random.default_rng(0).standard_normal((_MESSAGES, d)), np.ones(_MESSAGES)
    if config.impute:
        V[-1, 0] = np.nan
    with _first_compilation(on_compile):
        state, _ = learning.learn(State.empty(d, config.dtype), V[: len(V) // 2], retention[: len(V) // 2], small)
        old = replace(state, count=learning.YOUNG)
        learning.learn(old, V[len(V) // 2 :], retention[len(V) // 2 :], small)


class _Once(event.Listener):  # type: ignore[misc]  # numba has no types
    """Calls a function at the first event."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._called = call, False

    def on_start(self, event: Any) -> None:
        if not self._called:
            self._called = True
            self._call()

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def _first_compilation(call: Callable[[], None]) -> Iterator[None]:
    """Within this context, call the function when numba compiles for the first time."""
    with event.install_listener("numba:compile", _Once(call)):
        yield
