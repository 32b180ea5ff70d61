"""A store in memory: for one model file that is served, and for trials."""

import time

from streampca.stores.base import Store, check_name


class MemoryStore(Store):
    """`Store` in a dictionary, without folders, as in a bucket. Threads may share it: each step on it is atomic."""

    location = "memory"

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, float]] = {}  # content, and when it was written

    def write(self, name: str, data: bytes) -> None:
        check_name(name)
        self._files[name] = bytes(data), time.time()

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        file = bytes(data), time.time()
        return self._files.setdefault(name, file) is file

    def read(self, name: str) -> bytes:
        check_name(name)
        if (file := self._files.get(name)) is None:
            raise FileNotFoundError(name)
        return file[0]

    def names(self, folder: str) -> list[str]:
        check_name(folder)
        start = f"{folder}/"
        below = {name.removeprefix(start).split("/")[0] for name in list(self._files) if name.startswith(start)}
        return sorted(start + part for part in below)

    def times(self, folder: str) -> dict[str, float]:
        return {name: file[1] for name in self.names(folder) if (file := self._files.get(name))}

    def delete(self, name: str) -> None:
        check_name(name)
        self._files.pop(name, None)

    def check(self) -> None:
        """A dictionary can be written and read."""
