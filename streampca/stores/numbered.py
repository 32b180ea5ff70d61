"""Numbered files, `<folder>/<number, 20 digits>.npz`."""

import re

import structlog

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
