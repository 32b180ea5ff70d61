"""A store in memory, for tests and trials, with faults by order.

store.fail_writes(2)            # the next two writes raise StoreError, as on a full disk
store.crash_in_write()          # the next write raises Crash, as if the process had died in the middle of it
store.damage(name, position=7)  # flip the bits of one byte
"""

import threading
from collections import deque

from streampca.errors import StoreError
from streampca.stores.base import check_name


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that nothing handles it as weather."""


class MemoryStore:
    """`Store` in a dictionary; threads may share it."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._write_faults: deque[BaseException] = deque()
        self._read_faults: deque[BaseException] = deque()

    def write(self, name: str, data: bytes) -> None:
        """All or nothing; the next scripted fault comes instead."""
        check_name(name)
        with self._lock:
            _strike(self._write_faults)
            parts = name.split("/")
            folders = ("/".join(parts[:i]) for i in range(1, len(parts)))
            if any(folder in self._files for folder in folders) or self._inside(name):
                raise StoreError(f"cannot write {name}: a file stands where a folder is needed, or a folder for a file")
            self._files[name] = bytes(data)

    def read(self, name: str) -> bytes:
        """The whole file; the next scripted fault comes instead."""
        check_name(name)
        with self._lock:
            _strike(self._read_faults)
            if name in self._files:
                return self._files[name]
            if self._inside(name):
                raise StoreError(f"cannot read {name}: a folder stands where a file is needed")
            raise FileNotFoundError(name)

    def names(self, folder: str) -> list[str]:
        """What lies directly in the folder."""
        check_name(folder)
        with self._lock:
            if folder in self._files:
                raise StoreError(f"cannot list {folder}: a file stands where a folder is needed")
            return sorted({f"{folder}/{rest.split('/', 1)[0]}" for rest in self._inside(folder)})

    def delete(self, name: str) -> None:
        """Remove the file."""
        check_name(name)
        with self._lock:
            if self._inside(name):
                raise StoreError(f"cannot delete {name}: a folder stands where a file is needed")
            self._files.pop(name, None)

    def check(self) -> None:
        """Meets the next scripted fault of a write, if there is one."""
        with self._lock:
            _strike(self._write_faults)

    def _inside(self, folder: str) -> list[str]:
        return [name[len(folder) + 1 :] for name in self._files if name.startswith(f"{folder}/")]

    def fail_writes(self, count: int, error: StoreError | None = None) -> None:
        """Let the next `count` writes (and checks) fail; after those that were scripted before."""
        self._write_faults.extend([error or StoreError("cannot write: No space left on device")] * count)

    def crash_in_write(self) -> None:
        """Let the process die in the middle of the next write: `Crash` is raised and nothing is written."""
        self._write_faults.append(Crash("in the middle of a write"))

    def fail_reads(self, count: int, error: StoreError | None = None) -> None:
        """Let the next `count` reads fail."""
        self._read_faults.extend([error or StoreError("cannot read: Input/output error")] * count)

    def damage(self, name: str, position: int = -1) -> None:
        """Flip every bit of the byte at `position` of the file."""
        with self._lock:
            data = bytearray(self._files[name])
            data[position] ^= 0xFF
            self._files[name] = bytes(data)

    def cut(self, name: str, length: int) -> None:
        """Leave only the first `length` bytes of the file."""
        with self._lock:
            self._files[name] = self._files[name][:length]


def _strike(faults: deque[BaseException]) -> None:
    if faults:
        raise faults.popleft()
