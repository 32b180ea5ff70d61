"""Files that are numbered: `<folder>/<number, 20 digits>.npz`, of which the highest are kept."""

import re

from streampca.stores.base import Store

_FILE = re.compile(r"[0-9]{20}\.npz")


def path(folder: str, number: int) -> str:
    """The name of the file with that number."""
    return f"{folder}/{number:020d}.npz"


def numbers(store: Store, folder: str) -> list[int]:
    """The numbers there are, rising; other files are passed over."""
    stems = (name.rsplit("/", 1)[-1] for name in store.names(folder))
    return [int(stem[:20]) for stem in stems if _FILE.fullmatch(stem)]


def write(store: Store, folder: str, number: int, data: bytes, keep: int) -> None:
    """Write a file, then remove those with the lowest numbers beyond the `keep` highest."""
    store.write(path(folder, number), data)
    for low in numbers(store, folder)[:-keep]:
        store.delete(path(folder, low))
