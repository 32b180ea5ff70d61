"""A store in memory: for one model file that is served, and for trials."""

import threading
import time

from streampca.stores.base import Store, check_name


class MemoryStore(Store):
    """`Store` in a dictionary, without folders, as in a bucket; threads may share it."""

    location = "memory"

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._times: dict[str, float] = {}
        self._lock = threading.Lock()

    def write(self, name: str, data: bytes) -> None:
        check_name(name)
        with self._lock:
            self._files[name], self._times[name] = bytes(data), time.time()

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        with self._lock:
            created = name not in self._files
            self._files.setdefault(name, bytes(data))
            self._times.setdefault(name, time.time())
        return created

    def read(self, name: str) -> bytes:
        check_name(name)
        with self._lock:
            if name not in self._files:
                raise FileNotFoundError(name)
            return self._files[name]

    def names(self, folder: str) -> list[str]:
        check_name(folder)
        start = f"{folder}/"
        with self._lock:
            below = {name.removeprefix(start).split("/")[0] for name in self._files if name.startswith(start)}
        return sorted(start + part for part in below)

    def times(self, folder: str) -> dict[str, float]:
        return {name: self._times.get(name, 0.0) for name in self.names(folder) if name in self._files}

    def delete(self, name: str) -> None:
        check_name(name)
        with self._lock:
            self._files.pop(name, None)
            self._times.pop(name, None)

    def check(self) -> None:
        """A dictionary can be written and read."""
