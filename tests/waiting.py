"""Waits for conditions, with a deadline; and what continues meanwhile: something in a thread, or a clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

PATIENCE_S = 60  # what takes longer has failed; an idle machine takes a tenth of it at most


@dataclass
class Clock:
    """A clock that a test sets: returns `now`, seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def wait_until(
    condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str | Callable[[], str] = "the condition"
) -> Any:
    """The first true value of `condition`; fails if there is none within `timeout_s`. `what` may be computed then."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, (
            f"{what() if callable(what) else what} did not come true within {timeout_s} s"
        )
        time.sleep(0.02)
    return value


def answer_of(url: str) -> httpx.Response | None:
    """What a server answers; None while there is none."""
    try:
        return httpx.get(url, timeout=30)
    except httpx.TransportError:
        return None


def is_ready(url: str) -> bool:
    """Whether a URL answers with success."""
    answer = answer_of(url)
    return answer is not None and answer.is_success


@contextmanager
def every(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in a thread, again and again with this pause before it; when the block ends, the thread has ended."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
