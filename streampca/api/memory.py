"""Bounds the memory of request bodies that are being received and of answers that are being sent.

Clients that send slowly or do not read hold such memory for as long as they like; requests beyond are refused.
"""

import threading

from streampca.api.request import RequestError

UNCOUNTED_BYTES = 64 * 1024  # a body or an answer up to this size is not counted: connections bound their number
_RETRY_AFTER_S = 1


def no_memory() -> RequestError:
    """The answer to a request that there is no memory for at the moment."""
    return RequestError(
        503,
        "too many large requests at once: try again",
        limit="memory",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


class MemoryBudget:
    """A number of bytes that all requests share. Safe to use from any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._used = limit_bytes, 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    def lease(self) -> "Lease":
        """Memory for one request: nothing yet."""
        return Lease(self)

    def change(self, before: int, after: int) -> None:
        """Replace a lease's bytes. Raises `RequestError`, unless the lease is the only one: one always fits."""
        with self._lock:
            used = self._used - before + after
            if after > before and used > max(self._limit, after):
                raise no_memory()
            self._used = used


class Lease:
    """The memory of one request; whoever takes a lease must release it."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget, self._bytes = budget, 0

    def resize(self, size: int) -> None:
        """Need this many bytes from now on. Raises `RequestError` if others use too much."""
        needed = size if size > UNCOUNTED_BYTES else 0
        if needed != self._bytes:
            self._budget.change(self._bytes, needed)
            self._bytes = needed

    def release(self) -> None:
        """Give everything back."""
        self.resize(0)
