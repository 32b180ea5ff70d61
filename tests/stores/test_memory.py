"""The faults that the store in memory plays by order."""

import pytest

from streampca.errors import StoreError
from streampca.stores.memory import Crash, MemoryStore


def test_writes_fail_as_often_as_ordered_and_change_nothing() -> None:
    store = MemoryStore()
    store.write("a", b"old")
    store.fail_writes(2)
    for _ in range(2):
        with pytest.raises(StoreError):
            store.write("a", b"new")
        assert store.read("a") == b"old"
    store.write("a", b"new")
    assert store.read("a") == b"new"


def test_a_crash_in_a_write_is_not_caught_as_weather_and_leaves_the_old_file() -> None:
    store = MemoryStore()
    store.write("a", b"old")
    store.crash_in_write()
    with pytest.raises(Crash):
        store.write("a", b"new")
    assert not issubclass(Crash, Exception)
    assert store.read("a") == b"old"


def test_faults_come_in_the_order_of_the_script() -> None:
    store = MemoryStore()
    store.fail_writes(1, StoreError("first"))
    store.crash_in_write()
    with pytest.raises(StoreError, match="first"):
        store.check()
    with pytest.raises(Crash):
        store.write("a", b"")


def test_reads_fail_as_often_as_ordered() -> None:
    store = MemoryStore()
    store.write("a", b"old")
    store.fail_reads(1)
    with pytest.raises(StoreError):
        store.read("a")
    assert store.read("a") == b"old"


def test_damage_flips_one_byte_and_cut_shortens() -> None:
    store = MemoryStore()
    store.write("a", b"abc")
    store.damage("a", 1)
    assert store.read("a") == bytes([ord("a"), ord("b") ^ 0xFF, ord("c")])
    store.cut("a", 1)
    assert store.read("a") == b"a"
