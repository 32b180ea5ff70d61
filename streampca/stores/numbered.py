"""Numbered files, `<folder>/<number, 20 digits>.npz`."""

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
    return [number for name in store.names(folder) if (number := number_of(name)) is not None]


def number_of(name: str) -> int | None:
    """The number in a file's name; None if it has none."""
    stem = name.rsplit("/", 1)[-1]
    return int(stem[:20]) if _FILE.fullmatch(stem) else None


def write(store: Store, folder: str, number: int, data: bytes, existing: Iterable[int], keep: int) -> None:
    """Write a file, then delete all but the `keep` highest numbers up to it; higher ones are never deleted.

    `existing` are the numbers of the files before. Raises `StoreError` only if the file is not written. A file that
    cannot be deleted is logged, and tried next time; the newest goes first, so it holds up no later ones.
    """
    store.write(path(folder, number), data)
    try:
        for low in reversed(sorted(n for n in {*existing, number} if n <= number)[:-keep]):
            store.delete(path(folder, low))
    except StoreError as error:
        log.warning("old files not deleted", folder=folder, cause=str(error))
