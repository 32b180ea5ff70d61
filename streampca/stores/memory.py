"""A store in memory, for tests and trials, with scripted faults.

store.fail_writes(2)            # the next two writes raise StoreError, as on a full disk
store.fail_writes(1, Crash())   # the next write raises Crash, as if the process had died
store.damage(name, position=7)  # flip the bits of one byte
"""

import threading
from collections import deque

from streampca.errors import StoreError
from streampca.stores.base import Store, check_name


class Crash(BaseException):
    """The simulated death of the process; not an `Exception`, so that nothing handles it."""


class MemoryStore(Store):
    """`Store` in a dictionary, without folders, as in a bucket; threads may share it.

    Writes, checks and reads raise the next scripted fault, if any.
    """

    location = "memory"

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._write_faults: deque[BaseException] = deque()
        self._read_faults: deque[BaseException] = deque()

    def write(self, name: str, data: bytes) -> None:
        check_name(name)
        with self._lock:
            _raise_next(self._write_faults)
            self._files[name] = bytes(data)

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        with self._lock:
            _raise_next(self._write_faults)
            if name in self._files:
                return False
            self._files[name] = bytes(data)
            return True

    def read(self, name: str) -> bytes:
        check_name(name)
        with self._lock:
            _raise_next(self._read_faults)
            if name not in self._files:
                raise FileNotFoundError(name)
            return self._files[name]

    def names(self, folder: str) -> list[str]:
        check_name(folder)
        start = f"{folder}/"
        with self._lock:
            below = {name.removeprefix(start).split("/")[0] for name in self._files if name.startswith(start)}
        return sorted(start + part for part in below)

    def delete(self, name: str) -> None:
        check_name(name)
        with self._lock:
            self._files.pop(name, None)

    def check(self) -> None:
        _raise_next(self._write_faults)

    def fail_writes(self, count: int, error: BaseException | None = None) -> None:
        """Make the next `count` writes (or checks) fail and write nothing, after the faults already scripted."""
        self._write_faults.extend([error or StoreError("cannot write: No space left on device")] * count)

    def fail_reads(self, count: int, error: StoreError | None = None) -> None:
        self._read_faults.extend([error or StoreError("cannot read: Input/output error")] * count)

    def damage(self, name: str, position: int = -1) -> None:
        data = bytearray(self._files[name])
        data[position] ^= 0xFF
        self._files[name] = bytes(data)

    def cut(self, name: str, length: int) -> None:
        self._files[name] = self._files[name][:length]


def _raise_next(faults: deque[BaseException]) -> None:
    if faults:
        raise faults.popleft()
