"""Compiles everything that learning calls before the first message arrives, or loads it from numba's cache."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numba.core import event

from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State

_MESSAGES = 20  # any number will do: sizes are not part of the compiled code


def compile_learning_functions(config: LearningConfig, on_compile: Callable[[], None] = lambda: None) -> None:
    """Compile all code that learning with `config` needs, or load it from the cache.

    `on_compile` is called once if numba compiles.
    """
    # The messages are learned in two blocks, because the first block of a stream, of `warm_up` messages, calls other
    # functions than later blocks.
    small = replace(config, dimensions=3, components=2, warm_up=_MESSAGES // 2)
    if not config.keeps_covariance:
        small = replace(small, factor=True)  # `factor`: never keep Σ, which a state of 3 dimensions otherwise keeps
    V = np.random.default_rng(0).standard_normal((_MESSAGES, 3))
    retention = np.ones(_MESSAGES)  # without a half-life
    if config.impute:
        V[-1, 0] = np.nan  # compiles the code for missing entries
    call_once = cache(on_compile)
    with event.install_listener("numba:compile", _Listener(call_once)):
        learn(State.empty(3, config.dtype), V, retention, small)


class _Listener(event.Listener):  # type: ignore[misc]  # numba has no types
    """Calls a function whenever numba starts to compile."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_start(self, event: Any) -> None:
        self._call()

    def on_end(self, event: Any) -> None:
        pass


if __name__ == "__main__":  # run when the image is built, and before the tests, to fill NUMBA_CACHE_DIR for all models
    for dtype, factor in itertools.product(("float64", "float32"), (False, True)):
        compile_learning_functions(LearningConfig(3, 2, dtype=dtype, impute=True, standardize=True, factor=factor))
