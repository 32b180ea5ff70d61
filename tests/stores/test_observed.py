"""Each operation of an observed store is reported once, with its outcome, whatever store it is."""

from collections.abc import Callable
from typing import Any

import pytest

from streampca.errors import StoreError
from streampca.stores.memory import MemoryStore
from streampca.stores.observed import ObservedStore
from tests.errors import refusal

Reported = list[tuple[str, str]]

OPERATIONS: list[tuple[str, Callable[[ObservedStore], Any]]] = [
    ("write", lambda store: store.write("a/b", b"new")),
    ("write", lambda store: store.create("a/c", b"new")),
    ("write", lambda store: store.create("a/b", b"exists already")),
    ("read", lambda store: store.read("a/b")),
    ("read", lambda store: store.size("a/b")),
    ("list", lambda store: store.names("a")),
    ("delete", lambda store: store.delete("a/b")),
    ("check", lambda store: store.check()),
]


class FailingStore(MemoryStore):
    """Fails in every operation."""

    def fail(self, *arguments: Any) -> Any:
        raise StoreError("the store fails")

    write = create = read = names = size = delete = check = snapshot = fail


class ListingStore(MemoryStore):
    """A store in which listing is expensive, so that a snapshot lists once."""

    def snapshot(self, folder: str) -> MemoryStore:
        view = MemoryStore()
        for name in self.names(folder):
            view.write(name, self.read(name))
        return view


def observe(store: MemoryStore, reported: Reported) -> ObservedStore:
    def take(operation: str, outcome: str, seconds: float, requests: int) -> None:
        assert seconds >= 0
        assert requests == 1
        reported.append((operation, outcome))

    return ObservedStore(store, take)


@pytest.mark.parametrize(("operation", "act"), OPERATIONS)
def test_an_operation_is_reported_once_with_the_result_of_the_store(
    operation: str, act: Callable[[ObservedStore], Any]
) -> None:
    reported: Reported = []
    plain = MemoryStore()
    observed = MemoryStore()
    for store in (plain, observed):
        store.write("a/b", b"old")
    assert act(observe(observed, reported)) == act(ObservedStore(plain, lambda *_: None))
    assert reported == [(operation, "ok")]
    refusal(StoreError, act, observe(FailingStore(), reported))
    assert reported == [(operation, "ok"), (operation, "error")]


def test_a_file_that_does_not_exist_is_missing() -> None:
    reported: Reported = []
    refusal(FileNotFoundError, observe(MemoryStore(), reported).read, "a/b")
    assert reported == [("read", "missing")]


def test_a_snapshot_that_lists_is_reported_as_one_listing() -> None:
    reported: Reported = []
    store = ListingStore()
    store.write("a/b", b"1")
    view = observe(store, reported).snapshot("a")
    assert (view.names("a"), view.size("a/b")) == (["a/b"], 1)
    assert reported == [("list", "ok")]
    view.write("a/c", b"2")
    assert reported == [("list", "ok"), ("write", "ok")]


def test_a_snapshot_that_lists_nothing_is_the_store_itself() -> None:
    reported: Reported = []
    store = observe(MemoryStore(), reported)
    assert store.snapshot("a") is store
    assert reported == []
    refusal(StoreError, observe(FailingStore(), reported).snapshot, "a")
    assert reported == [("list", "error")]
