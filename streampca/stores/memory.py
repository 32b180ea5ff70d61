"""A store in memory: for one model file that is served, and for trials."""

from streampca.stores.base import Store, check_name


class MemoryStore(Store):
    """`Store` in a dictionary, which has no folders, like a bucket. Threads may share it: each step is atomic."""

    location = "memory"

    def __init__(self) -> None:
        self._files: dict[str, memoryview] = {}

    def write(self, name: str, data: bytes) -> None:
        check_name(name)
        self._files[name] = memoryview(bytes(data))

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        content = memoryview(bytes(data))  # a new object: if several threads create the file, only one finds its own
        return self._files.setdefault(name, content) is content

    def read(self, name: str) -> bytes:
        check_name(name)
        content = self._files.get(name)
        if content is None:
            raise FileNotFoundError(name)
        return bytes(content)

    def names(self, folder: str) -> list[str]:
        """List the files and folders directly in a folder."""
        check_name(folder)
        prefix = f"{folder}/"
        paths = [name.removeprefix(prefix) for name in list(self._files) if name.startswith(prefix)]
        parts = {path.split("/")[0] for path in paths}  # of "a/b", only "a" lies directly in the folder
        return sorted(prefix + part for part in parts)

    def size(self, name: str) -> int:
        check_name(name)
        return len(self._files.get(name, b""))

    def delete(self, name: str) -> None:
        check_name(name)
        self._files.pop(name, None)

    def check(self) -> None:
        """Do nothing: a dictionary can always be written and read."""
