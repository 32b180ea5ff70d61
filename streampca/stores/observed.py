"""A store around another one, which reports each operation: for stores that report none themselves."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from streampca.stores.base import Observe, Store


class ObservedStore(Store):
    """Calls `observe` after each operation of a store. An operation counts as one request, whatever the store does."""

    def __init__(self, store: Store, observe: Observe) -> None:
        self.location = store.location
        self._store = store
        self._observe = observe

    def write(self, name: str, data: bytes) -> None:
        with self._report("write"):
            self._store.write(name, data)

    def create(self, name: str, data: bytes) -> bool:
        with self._report("write"):
            return self._store.create(name, data)

    def read(self, name: str) -> bytes:
        with self._report("read"):
            return self._store.read(name)

    def names(self, folder: str) -> list[str]:
        with self._report("list"):
            return self._store.names(folder)

    def size(self, name: str) -> int:
        with self._report("read"):
            return self._store.size(name)

    def snapshot(self, folder: str) -> "ObservedStore":
        """Return an observed view of the store."""
        has_default_snapshot = type(self._store).snapshot is Store.snapshot
        if has_default_snapshot:  # it lists nothing
            return self
        with self._report("list"):
            view = self._store.snapshot(folder)
        return _ObservedSnapshot(view, self._observe)

    def delete(self, name: str) -> None:
        with self._report("delete"):
            self._store.delete(name)

    def missing(self) -> str | None:
        return self._store.missing()

    def check(self) -> None:
        with self._report("check"):
            self._store.check()

    @contextmanager
    def _report(self, operation: str) -> Iterator[None]:
        """Report the operation in the block, with its outcome and its duration."""
        started = time.perf_counter()
        outcome = "error"
        try:
            yield
            outcome = "ok"
        except FileNotFoundError:  # only the file to read is missing: if the store fails, it raises `StoreError`
            outcome = "missing"
            raise
        finally:
            self._observe(operation, outcome, time.perf_counter() - started, 1)


class _ObservedSnapshot(ObservedStore):
    """A view that answers `names` and `size` from the list that `snapshot` has made, so these are not reported."""

    def names(self, folder: str) -> list[str]:
        return self._store.names(folder)

    def size(self, name: str) -> int:
        return self._store.size(name)
