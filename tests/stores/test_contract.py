"""The contract of all stores, tested on each; the object store talks to a server over HTTP."""

import os
import string
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from streampca.errors import StoreError
from streampca.stores.base import Store, observe_nothing
from streampca.stores.choice import open_store
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.observed import ObservedStore
from tests.errors import refusal
from tests.s3_process import BUCKET

BAD_NAMES = [
    "", "/", "/etc/passwd", "..", "../a", "a/../b", "a/..", ".", "./a", "a//b", "a/", "a\\b", "a b", "~a", "a\0",
]  # fmt: skip

OBJECTS = pytest.param("objects", marks=pytest.mark.slow)
PLUG_INS = os.environ.get("TEST_STORE_URLS", "").split()  # URLs below which stores of installed packages are tested


@pytest.fixture(params=["directory", "memory", "observed", OBJECTS, *PLUG_INS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param in PLUG_INS:
        return open_store(f"{request.param}/{uuid.uuid4().hex}")
    if request.param == "objects":
        request.getfixturevalue("s3")
        return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}/store")
    if request.param == "observed":
        return ObservedStore(DirectoryStore(tmp_path / "store"), observe_nothing)
    return DirectoryStore(tmp_path / "store") if request.param == "directory" else MemoryStore()


@pytest.mark.parametrize("store", ["directory", "memory"], indirect=True)
def test_one_of_many_creates_the_file(store: Store) -> None:
    """Object stores promise the same, but the server of these tests lets the last of them win."""
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        return store.create("a/b", bytes([number]) * 100)

    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            created = list(pool.map(create, range(8)))
        assert store.names("a") == ["a/b"]
        assert store.read("a/b") == bytes([created.index(True)]) * 100
        assert created.count(True) == 1
        store.delete("a/b")


def test_names_are_full_paths_of_one_level_in_order(store: Store) -> None:
    for name in ("a/c", "a/b", "a/folder/deep/x", "b/z", "ab/y"):
        store.write(name, b"")
    assert store.names("a") == ["a/b", "a/c", "a/folder"]
    assert store.names("a/folder") == ["a/folder/deep"]
    assert store.names("absent") == []


def test_check_leaves_no_files_and_a_store_that_was_written_to_exists(store: Store) -> None:
    store.write("a/b", b"1")
    store.check()
    assert store.names("a") == ["a/b"]
    assert store.missing() is None


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_leave_the_store_are_refused(store: Store, name: str) -> None:
    writes = (lambda n: store.write(n, b"x"), lambda n: store.create(n, b"x"))
    for action in (store.read, store.names, store.delete, *writes):
        assert "is not a valid file name" in refusal(StoreError, action, name)


@pytest.mark.parametrize("store", ["directory"], indirect=True)
def test_a_file_cannot_be_a_folder_nor_a_folder_a_file(store: Store) -> None:
    store.write("a/b/c", b"1")
    for action in (
        lambda: store.write("a/b", b"2"),
        lambda: store.write("a/b/c/d", b"2"),
        lambda: store.create("a/b/c/d", b"2"),
        lambda: store.read("a/b"),
        lambda: store.names("a/b/c"),
        lambda: store.delete("a/b"),
    ):
        refusal(StoreError, action)
    assert store.read("a/b/c") == b"1"
    assert store.names("a") == ["a/b"]


@pytest.mark.parametrize("store", ["memory", OBJECTS], indirect=True)
def test_without_folders_a_name_may_begin_with_another(store: Store) -> None:
    """A file in a folder's place harms nothing there, and nothing of the store ever puts one."""
    store.write("a/b/c", b"1")
    refusal(FileNotFoundError, store.read, "a/b")
    store.delete("a/b")
    assert store.names("a/b/c") == []
    store.write("a/b", b"2")
    assert (store.read("a/b"), store.read("a/b/c")) == (b"2", b"1")
    assert (store.names("a"), store.names("a/b")) == (["a/b"], ["a/b/c"])
    store.delete("a/b")
    assert store.read("a/b/c") == b"1"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["directory", "memory"], indirect=True)
def test_a_concurrent_reader_sees_the_old_or_the_new_file(store: Store) -> None:
    """A writer replaces one file a thousand times while readers read and list it.

    Object stores promise the same, but the server of these tests overwrites the file that it is sending.
    """
    contents = [bytes([i]) * 20_000 for i in range(8)]
    store.write("a/b", contents[0])
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(0.0001):  # without a pause readers hold the GIL, and see fewer of the writes
            assert store.read("a/b") in contents
            assert store.names("a") == ["a/b"]

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for i in range(1000):
                store.write("a/b", contents[i % len(contents)])
        finally:
            stop.set()
        for reader in readers:
            reader.result()


def test_concurrent_writers_leave_one_complete_content(store: Store) -> None:
    contents = [bytes([i]) * 5000 for i in range(4)]

    def write(content: bytes) -> None:
        for _ in range(100 if isinstance(store, DirectoryStore | MemoryStore) else 10):  # in others each is a request
            store.write("deep/er/b", content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert store.read("deep/er/b") in contents
    assert store.names("deep/er") == ["deep/er/b"]


PARTS = st.sampled_from(["a", "b", "c.npz"])
STEPS = st.tuples(
    st.sampled_from(["write", "create", "delete"]),
    st.lists(PARTS, min_size=2, max_size=2).map("/".join),
    st.binary(max_size=5),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=12))
def test_a_store_behaves_like_a_dictionary_with_folders(store: Store, steps: list[tuple[str, str, bytes]]) -> None:
    for folder in ("a", "b", "c.npz"):
        for name in store.names(folder):
            store.delete(name)
    model: dict[str, bytes] = {}
    for verb, name, data in steps:
        if verb == "write":
            store.write(name, data)
            model[name] = data
        elif verb == "create":
            assert store.create(name, data) is (name not in model)
            model.setdefault(name, data)
        else:
            store.delete(name)
            model.pop(name, None)
    for folder in ("a", "b", "c.npz"):
        assert store.names(folder) == sorted(name for name in model if name.startswith(f"{folder}/"))
    assert {name: store.read(name) for name in model} == model
    for name in {name for _, name, _ in steps} - model.keys():
        refusal(FileNotFoundError, store.read, name)


@pytest.mark.slow
def test_a_file_may_be_large(store: Store) -> None:
    content = b"streamp!" * 2**23
    store.write("a/b", content)
    assert store.read("a/b") == content


def test_names_may_have_every_allowed_character(store: Store) -> None:
    parts = ["...", "..a", "-", "_", "A-Z.a_z-0.9", string.ascii_letters + string.digits + "._-", "Z" * 255]
    for part in parts:
        store.write(f"a/{part}", part.encode())
    assert store.names("a") == sorted(f"a/{part}" for part in parts)
    assert [store.read(f"a/{part}") for part in parts] == [part.encode() for part in parts]


@pytest.mark.parametrize("store", [OBJECTS], indirect=True)
def test_a_folder_may_have_more_files_than_a_page_of_a_listing(store: Store) -> None:
    names = [f"models/t/{number:020d}.npz" for number in range(1001)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.write(name, b""), names))
    assert store.names("models/t") == names


def test_the_size_of_a_file_is_that_of_its_content(store: Store) -> None:
    for name, data in {"a/0/1": b"", "a/0/2": b"12", "a/1": b"123"}.items():
        store.write(name, data)
    snapshot = store.snapshot("a")
    snapshot.write("a/0/3", b"1234")
    snapshot.write("a/1", b"12345")
    for view in (store, snapshot):
        assert [view.size(f"a/{name}") for name in ("0/1", "0/2", "0/3", "1", "0/absent", "2/absent")] == [
            0, 2, 4, 5, 0, 0,
        ]  # fmt: skip
    snapshot.delete("a/0/2")
    assert (store.size("a/0/2"), snapshot.size("a/0/2")) == (0, 0)
    assert "is not a valid file name" in refusal(StoreError, store.size, "a/..")


def test_a_snapshot_lists_what_was_there_and_what_is_written_through_it(store: Store) -> None:
    store.write("a/0/1", b"1")
    store.write("a/10/1", b"2")
    store.write("b/1", b"3")
    snapshot = store.snapshot("a")
    snapshot.write("a/0/2", b"4")
    snapshot.delete("a/10/1")
    assert (snapshot.create("a/0/3", b"5"), snapshot.create("a/0/1", b"6")) == (True, False)
    assert snapshot.names("a/0") == store.names("a/0") == ["a/0/1", "a/0/2", "a/0/3"]
    assert (snapshot.names("a/10"), snapshot.names("b"), snapshot.names("none")) == ([], ["b/1"], [])
    assert "a/0" in snapshot.names("a")
    assert snapshot.read("a/0/2") == store.read("a/0/2") == b"4"
    assert "is not a valid file name" in refusal(StoreError, snapshot.names, "a/..")
