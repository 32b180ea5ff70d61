"""The compiled code that learning is done with: had from numba's cache, or compiled at the first start on a machine.

The first messages of a partition are absorbed (pca/learning.py). That takes a few small functions, and these come
first, within a second or so. The one function that learns a block of later messages (pca/blocked/update.py) takes ten
times as long to compile, and has that done in a thread of its own, while the worker joins its group, reads, and learns those
first messages.

Whoever calls the function meanwhile waits: numba compiles behind a lock, and whoever gets it looks first whether the
code is there by now. So nothing is compiled twice, and what is learned never depends on when it was. A compilation
cannot be broken off, and a process that ends in the midst of one crashes now and then; so its end waits for it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import structlog
from numba.core import event

from streampca.pca import learning
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig
from streampca.pca.state import State
from streampca.worker.listener import Listener, WorkerEvent, WorkerStopping

log = structlog.get_logger()

_FIRST, _MORE = 100, 10  # messages: few among many, else they were absorbed, too


class Kernels(Listener):
    """The compiled code of one configuration, and its progress; listens for the worker's end, which has to wait for it."""

    def __init__(self, config: LearningConfig) -> None:
        self._config = LearningConfig(3, 2, 0, config.center, config.dtype, warm_up=_FIRST)
        self._messages: Array = np.random.default_rng(0).standard_normal((_FIRST + _MORE, 3)).astype(config.dtype)
        self._under_way: Future[None] | None = None
        self._compiling = False
        self._known = threading.Event()  # whether it is compiled, or just loaded

    def have_small(self) -> State:
        """Return when there is what absorbs a block, with the state of one that was."""
        return self._learned(State.empty(3, self._config.dtype), self._messages[:_FIRST])

    def have_all(self) -> None:
        """Return when there is what learns a block, too."""
        self._have_block(self.have_small())

    def begin_all(self) -> None:
        """Return when there is what absorbs a block; the rest is had in a thread."""
        state = self.have_small()
        executor = ThreadPoolExecutor(1, thread_name_prefix="compiling")  # waited for when the interpreter ends
        self._under_way = executor.submit(self._have_block, state)
        executor.shutdown(wait=False)

    @property
    def busy(self) -> bool:
        """Whether something is being compiled or loaded in a thread."""
        return self._under_way is not None and not self._under_way.done()

    def ready(self) -> bool:
        """Whether a block can be learned now. Waits for code to be loaded, but not for any to be compiled.

        Raises whatever the thread failed with.
        """
        if self._under_way is None:
            return True
        self._known.wait()
        if self._compiling and not self._under_way.done():
            return False
        self._under_way.result()
        return True

    def notify(self, event: WorkerEvent) -> None:
        if isinstance(event, WorkerStopping) and self._compiling and self.busy:
            log.info("waiting for the compilation, which cannot be broken off")

    def _have_block(self, state: State) -> None:
        started = time.perf_counter()
        try:
            with _heard_compiling(self._tell):
                self._learned(state, self._messages[_FIRST:])
        finally:
            self._known.set()
        if self._compiling:
            log.info("compiled", seconds=round(time.perf_counter() - started, 1))

    def _tell(self) -> None:
        if not self._compiling:
            log.info("compiling what learns, which is not in the cache yet")
        self._compiling = True
        self._known.set()

    def _learned(self, state: State, V: Array) -> State:
        return learning.learn(state, V, np.ones(len(V)), self._config)[0]


class _Compilations(event.Listener):  # type: ignore[misc]  # numba has no types
    """Hears of those in the thread that it was made in."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard, self._thread = heard, threading.get_ident()

    def on_start(self, event: Any) -> None:
        if threading.get_ident() == self._thread:
            self._heard()

    def on_end(self, event: Any) -> None:
        """That it began is enough."""


@contextmanager
def _heard_compiling(heard: Callable[[], None]) -> Iterator[None]:
    """Hear when numba begins to compile, which it does not when the code is loaded from its cache."""
    with event.install_listener("numba:compile", _Compilations(heard)):
        yield
