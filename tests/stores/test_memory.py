"""The scripted faults of MemoryStore."""

import pytest

from streampca.errors import StoreError
from streampca.stores.memory import Crash, MemoryStore


def test_fail_writes_fails_this_many_writes_without_effect() -> None:
    store = MemoryStore()
    store.write("a", b"old")
    store.fail_writes(2)
    for _ in range(2):
        with pytest.raises(StoreError):
            store.write("a", b"new")
        assert store.read("a") == b"old"
    store.write("a", b"new")
    assert store.read("a") == b"new"


def test_a_crash_in_a_write_is_a_base_exception_and_keeps_the_old_file() -> None:
    store = MemoryStore()
    store.write("a", b"old")
    store.crash_in_write()
    with pytest.raises(Crash):
        store.write("a", b"new")
    assert not issubclass(Crash, Exception)
    assert store.read("a") == b"old"


def test_faults_occur_in_the_scripted_order() -> None:
    store = MemoryStore()
    store.fail_writes(1, StoreError("first"))
    store.crash_in_write()
    with pytest.raises(StoreError, match="first"):
        store.check()
    with pytest.raises(Crash):
        store.write("a", b"")


def test_fail_reads_fails_this_many_reads() -> None:
    store = MemoryStore()
    store.write("a", b"old")
    store.fail_reads(1)
    with pytest.raises(StoreError):
        store.read("a")
    assert store.read("a") == b"old"


def test_damage_flips_one_byte_and_cut_truncates() -> None:
    store = MemoryStore()
    store.write("a", b"abc")
    store.damage("a", 1)
    assert store.read("a") == bytes([ord("a"), ord("b") ^ 0xFF, ord("c")])
    store.cut("a", 1)
    assert store.read("a") == b"a"
