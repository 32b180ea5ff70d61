"""What a format implements: a reader that turns one Kafka value into the numbers of its vectors."""

from typing import Any, Protocol

import numpy as np

from streampca.formats.packing import VectorBytes

MAX_BATCH_BYTES = 64 * 2**20  # of a value with several vectors, packed and unpacked; topics take 1 MiB by default


class Reader(Protocol):
    """One format, for vectors of d numbers."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers that `read` returns."""

    @property
    def size(self) -> int | None:
        """Bytes of a value, if every value of that size is d numbers as it stands; None if values must be parsed."""

    @property
    def is_batch(self) -> bool:
        """Whether a value holds any number of vectors; otherwise it holds one."""

    def read(self, value: bytes) -> VectorBytes:
        """The d numbers of a value, or n·d numbers of a batch.

        Raises `VectorError` if the value holds no vectors, and the schema registry's errors, which are not the value's
        fault. Does not check whether the numbers are finite and small enough.
        """
