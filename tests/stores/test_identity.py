"""The identity of a store: created once, kept by a copy, and never a guess."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from streampca.errors import DamagedFileError, StaleListingError
from streampca.stores import identity
from streampca.stores.checksummed import encode
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore


def test_an_identity_is_created_once_and_found_again(tmp_path: Path) -> None:
    assert identity.find(DirectoryStore(tmp_path)) is None
    first = identity.ensure(DirectoryStore(tmp_path))
    assert identity.ensure(DirectoryStore(tmp_path)) == identity.find(DirectoryStore(tmp_path)) == first
    assert first.location == str(tmp_path)
    assert identity.ensure(MemoryStore()).id != identity.ensure(MemoryStore()).id


def test_processes_that_start_together_get_the_same_identity(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        identities = set(pool.map(lambda _: identity.ensure(DirectoryStore(tmp_path)), range(16)))
    assert len(identities) == 1


def test_a_copy_has_the_same_identity_in_another_place(tmp_path: Path) -> None:
    original = DirectoryStore(tmp_path / "a")
    copy = DirectoryStore(tmp_path / "b")
    first = identity.ensure(original)
    copy.write(identity.NAME, original.read(identity.NAME))
    assert identity.ensure(copy) == first._replace(location=str(tmp_path / "b"))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"id": 5}', b'{"id": "../../etc"}', b"\xff", encode("id", "../../etc"), encode("id", 5)]
)
def test_a_damaged_identity_is_not_replaced(content: bytes) -> None:
    store = MemoryStore()
    store.write(identity.NAME, content)
    for action in (identity.find, identity.ensure):
        with pytest.raises(DamagedFileError, match=r"store.json in the store memory is damaged.*streampca reset"):
            action(store)
    assert store.read(identity.NAME) == content


def test_a_flipped_bit_never_gives_another_identity() -> None:
    store = MemoryStore()
    first = identity.ensure(store)
    content = store.read(identity.NAME)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        store.write(identity.NAME, bytes(flipped))
        with suppress(DamagedFileError):
            assert identity.find(store) == first


def test_an_identity_that_exists_but_is_not_shown_yet_is_a_stale_listing() -> None:
    """A network file system may remember for a minute that a file was missing."""

    class Late(MemoryStore):
        def read(self, name: str) -> bytes:
            raise FileNotFoundError(name)

    store = Late()
    store.write(identity.NAME, b"another worker's")
    with pytest.raises(StaleListingError, match="a retry may help"):
        identity.ensure(store)
