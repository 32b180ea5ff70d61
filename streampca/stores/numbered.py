"""Numbered files, `<folder>/<number, 20 digits>.npz`."""

import re
from collections.abc import Iterable

import structlog

from streampca.errors import StoreError
from streampca.stores.base import Store

log = structlog.get_logger()

_FILE = re.compile(r"([0-9]{20})\.npz")


def path(folder: str, number: int) -> str:
    """Return the name of a numbered file."""
    return f"{folder}/{number:020d}.npz"


def list_numbers(store: Store, folder: str) -> list[int]:
    """List the numbers of the numbered files in a folder, ascending. Other files are ignored."""
    numbers = []
    for name in store.names(folder):  # sorted, and so are the numbers, as each has 20 digits
        match = _FILE.fullmatch(name.rsplit("/", 1)[-1])
        if match:
            numbers.append(int(match[1]))
    return numbers


def write(store: Store, folder: str, number: int, data: bytes, existing: Iterable[int], keep: int) -> None:
    """Write the file with this number, then delete the lowest numbers until `keep` files are left.

    Files with a higher number are neither counted nor deleted: they may be damaged. A failed deletion is only logged.
    """
    store.write(path(folder, number), data)
    up_to_number = sorted(n for n in {*existing, number} if n <= number)
    to_delete = up_to_number[:-keep]
    try:
        # Highest number first: if the lowest file can never be deleted, the others still are.
        for old in reversed(to_delete):
            store.delete(path(folder, old))
    except StoreError as error:
        log.warning("old files not deleted", folder=folder, cause=str(error))
