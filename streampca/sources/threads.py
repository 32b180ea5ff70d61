"""The threads, conditions and futures of a source, so that a simulation can run its own ones step by step."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Threads:
    """Creates them: those of the standard library, or replacements with the same methods."""

    thread: Callable[..., threading.Thread] = threading.Thread
    condition: Callable[[], threading.Condition] = threading.Condition
    future: Callable[[], Future[Any]] = Future


OS_THREADS = Threads()
