"""What every format has in common: a reader of single values, and the fault that it finds."""

from typing import Any, Protocol

import numpy as np

Numbers = bytes | memoryview
"""A vector's numbers in memory, or those of several, one vector after the other."""


class FaultError(Exception):
    """Why one value is no vector: the short name of the fault, and what was wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Reader(Protocol):
    """One format, for vectors of d numbers."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers that `read` returns."""

    @property
    def size(self) -> int | None:
        """Bytes of a value, where every value of that length is d numbers as it stands; None where it must be read."""

    def read(self, value: bytes) -> Numbers:
        """The d numbers of a value; of a format whose values hold several vectors, n·d.

        Raises `FaultError` for what is no vector. Whether the numbers are finite and small enough is not looked at.
        """


def check_length(length: int, dimensions: int) -> None:
    """Raise the fault of a vector that has not d numbers."""
    if length != dimensions:
        raise FaultError("wrong_length", f"{length} numbers, not {dimensions}")
