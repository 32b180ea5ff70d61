"""Waits for conditions, with a deadline."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60  # what takes longer has failed; an idle machine takes a tenth of it at most


def wait_until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "the condition") -> Any:
    """The first true value of `condition`; fails if there is none within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.02)
    return value
