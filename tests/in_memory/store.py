"""A store in memory with scripted faults.

store.fail_writes(2)            # the next two writes raise StoreError, as on a full disk
store.fail_writes(1, Crash())   # the next write raises Crash, as if the process had died
store.damage(name, position=7)  # flip the bits of one byte
"""

from collections import deque

from streampca.errors import StoreError
from streampca.stores.memory import MemoryStore


class Crash(BaseException):
    """The simulated death of the process; not an `Exception`, so that nothing handles it."""


class FaultyStore(MemoryStore):
    """Writes, checks and reads raise the next scripted fault, if any."""

    def __init__(self) -> None:
        super().__init__()
        self._write_faults: deque[BaseException] = deque()
        self._read_faults: deque[BaseException] = deque()

    def write(self, name: str, data: bytes) -> None:
        _raise_next(self._write_faults)
        super().write(name, data)

    def create(self, name: str, data: bytes) -> bool:
        _raise_next(self._write_faults)
        return super().create(name, data)

    def read(self, name: str) -> bytes:
        _raise_next(self._read_faults)
        return super().read(name)

    def check(self) -> None:
        _raise_next(self._write_faults)

    def fail_writes(self, count: int, error: BaseException | None = None) -> None:
        """Make the next `count` writes (or checks) fail and write nothing, after the faults already scripted."""
        self._write_faults.extend([error or StoreError("cannot write: No space left on device")] * count)

    def fail_reads(self, count: int, error: StoreError | None = None) -> None:
        """Make the next `count` reads fail, after the faults already scripted."""
        self._read_faults.extend([error or StoreError("cannot read: Input/output error")] * count)

    def damage(self, name: str, position: int = -1) -> None:
        """Flip the bits of one byte of a file."""
        data = bytearray(super().read(name))
        data[position] ^= 0xFF
        super().write(name, data)

    def cut(self, name: str, length: int) -> None:
        """Truncate a file to this number of bytes."""
        super().write(name, super().read(name)[:length])


def _raise_next(faults: deque[BaseException]) -> None:
    if faults:
        raise faults.popleft()
