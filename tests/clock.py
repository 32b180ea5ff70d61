"""A clock that a test sets."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Returns `now`, seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
