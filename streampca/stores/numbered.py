"""Numbered files, `<folder>/<number, 20 digits>.npz`; only the highest numbers are kept."""

import re
from collections.abc import Iterable

import structlog

from streampca.errors import StoreError
from streampca.stores.base import Store

log = structlog.get_logger()

_FILE = re.compile(r"[0-9]{20}\.npz")


def path(folder: str, number: int) -> str:
    return f"{folder}/{number:020d}.npz"


def numbers(store: Store, folder: str) -> list[int]:
    """The numbers of the files, ascending; ignores other files."""
    return [int(stem[:20]) for name in store.names(folder) if _FILE.fullmatch(stem := name.rsplit("/", 1)[-1])]


def write(
    store: Store, folder: str, number: int, data: bytes, existing: Iterable[int], keep: int, *, new: bool = False
) -> bool:
    """Write a file, then delete all but the `keep` highest numbers up to it; higher ones are never deleted.

    `existing` are the numbers of the files before. With `new`, return False and change nothing if the file exists.
    Raises `StoreError` only if the file is not written. A file that cannot be deleted is logged, and tried next time;
    the newest goes first, so it holds up no later ones.
    """
    if not new:
        store.write(path(folder, number), data)
    elif not store.create(path(folder, number), data):
        return False
    try:
        for low in reversed(sorted(n for n in {*existing, number} if n <= number)[:-keep]):
            store.delete(path(folder, low))
    except StoreError as error:
        log.warning("old files not deleted", folder=folder, cause=str(error))
    return True
