"""A store with the listings of one moment, where each would cost a request."""

from collections.abc import Iterable

from streampca.stores.base import Store, check_name, is_part


class Snapshot:
    """`Store` that answers listings below `folder` from `names`, updated by what is written and deleted through it.

    `names` are the full names of all files below the folder. Everything else is passed on to `store`.
    """

    def __init__(self, store: Store, folder: str, names: Iterable[str]) -> None:
        self._store, self._folder = store, folder
        self._names = set(names)

    def write(self, name: str, data: bytes) -> None:
        """Write the file, and list it from now on."""
        self._store.write(name, data)
        self._names.add(name)

    def create(self, name: str, data: bytes) -> bool:
        """Write the file unless it exists, and list it from now on."""
        created = self._store.create(name, data)
        self._names.add(name)
        return created

    def read(self, name: str) -> bytes:
        """The file's content now."""
        return self._store.read(name)

    def names(self, folder: str) -> list[str]:
        """The names directly in the folder, as they were if it is in that of the snapshot."""
        check_name(folder)
        if not f"{folder}/".startswith(f"{self._folder}/"):
            return self._store.names(folder)
        start = f"{folder}/"
        parts = {name.removeprefix(start).split("/")[0] for name in self._names if name.startswith(start)}
        return sorted(f"{start}{part}" for part in parts if is_part(part))

    def snapshot(self, folder: str) -> Store:
        """A new snapshot."""
        return self._store.snapshot(folder)

    def delete(self, name: str) -> None:
        """Remove the file, and list it no more."""
        self._store.delete(name)
        self._names.discard(name)

    @property
    def place(self) -> str:
        """Where the store is."""
        return self._store.place

    def missing(self) -> str | None:
        """Where the store should be."""
        return self._store.missing()

    def check(self) -> None:
        """Check the store."""
        self._store.check()
