"""Reports each operation of a store, also of stores that report none themselves."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streampca.stores.base import Observe, Store


@dataclass
class RequestCounter:
    """How many HTTP requests one operation on a store makes."""

    count: int = 1  # without those that the library has repeated


@contextmanager
def report(observe: Observe, operation: str) -> Iterator[RequestCounter]:
    """Report the operation in the block, with its outcome, its duration and the number of its requests.

    The operation counts as one request, unless the block sets another number.
    """
    requests = RequestCounter()
    started = time.perf_counter()
    outcome = "error"
    try:
        yield requests
        outcome = "ok"
    except FileNotFoundError:  # only the file is missing: if the store fails, it raises `StoreError`
        outcome = "missing"
        raise
    finally:
        observe(operation, outcome, time.perf_counter() - started, requests.count)


class ObservedStore(Store):
    """Calls `observe` after each operation of a store. An operation counts as one request, whatever the store does."""

    def __init__(self, store: Store, observe: Observe) -> None:
        self.location = store.location
        self._store = store
        self._observe = observe

    def write(self, name: str, data: bytes) -> None:
        with report(self._observe, "write"):
            self._store.write(name, data)

    def create(self, name: str, data: bytes) -> bool:
        with report(self._observe, "write"):
            return self._store.create(name, data)

    def read(self, name: str) -> bytes:
        with report(self._observe, "read"):
            return self._store.read(name)

    def names(self, folder: str) -> list[str]:
        with report(self._observe, "list"):
            return self._store.names(folder)

    def size(self, name: str) -> int:
        with report(self._observe, "read"):
            return self._store.size(name)

    def snapshot(self, folder: str) -> "ObservedStore":
        """Return a view of the store, which lists `folder` once. The requests of the view are reported, too."""
        has_default_snapshot = type(self._store).snapshot is Store.snapshot
        if has_default_snapshot:  # the default returns the store itself, without a request that could be reported
            return self
        with report(self._observe, "list"):
            view = self._store.snapshot(folder)
        return _ObservedSnapshot(view, self._observe)

    def delete(self, name: str) -> None:
        with report(self._observe, "delete"):
            self._store.delete(name)

    def missing(self) -> str | None:
        return self._store.missing()

    def check(self) -> None:
        with report(self._observe, "check"):
            self._store.check()


class _ObservedSnapshot(ObservedStore):
    """A view that answers `names` and `size` from the list that `snapshot` has made, so these are not reported."""

    def names(self, folder: str) -> list[str]:
        return self._store.names(folder)

    def size(self, name: str) -> int:
        return self._store.size(name)
