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


def numbers(store: Store, folder: str) -> list[int]:
    """List the numbers of the files in a folder, ascending. Other files are ignored."""
    files = [_FILE.fullmatch(name.rsplit("/", 1)[-1]) for name in store.names(folder)]
    return [int(file[1]) for file in files if file]


def write(store: Store, folder: str, number: int, data: bytes, existing: Iterable[int], keep: int) -> None:
    """Write a file, then delete the lowest numbers, so that `keep` files up to this number are left.

    Files with higher numbers are neither counted nor deleted. `existing` are the numbers that the folder had before.
    Raises `StoreError` only if the file is not written. If a file cannot be deleted, that is logged, and the next call
    tries again.
    """
    store.write(path(folder, number), data)
    up_to_number = sorted(n for n in {*existing, number} if n <= number)
    to_delete = up_to_number[:-keep]
    try:
        # The newest first, so that a file that can never be deleted does not keep newer ones from being deleted.
        for old in reversed(to_delete):
            store.delete(path(folder, old))
    except StoreError as error:
        log.warning("old files not deleted", folder=folder, cause=str(error))
