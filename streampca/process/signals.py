"""Handlers of SIGTERM and SIGINT (Ctrl-C)."""

import signal
import sys
from collections.abc import Callable
from types import FrameType


def stop_on_signals(stop: Callable[[str], object]) -> None:
    """Call `stop` with the name of the signal."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def exit_on_sigterm() -> None:
    """Exit in order: a container's first process ignores signals that it does not handle."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
