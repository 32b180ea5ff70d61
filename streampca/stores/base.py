"""The interface of stores: named files, written atomically."""

import re
from collections.abc import Callable
from typing import Literal, Protocol

from streampca.errors import StoreError, listed

Observe = Callable[[str, str, float, int], None]
"""Called after each operation with its name, its outcome (ok, missing or error), its seconds and its requests."""

_PART = re.compile(r"[A-Za-z0-9._-]{1,255}")  # of a name, between slashes: what Kafka allows in a topic's name


def ignore(operation: str, outcome: str, seconds: float, requests: int) -> None:
    """An `Observe` that does nothing."""


def is_part(text: str) -> bool:
    """Return whether `text` is valid as a part of a name, between slashes."""
    return _PART.fullmatch(text) is not None and text not in (".", "..")


def check_name(name: str) -> None:
    """Raise `StoreError` unless `name` is a relative path of valid parts, so that it cannot leave the store."""
    if not all(is_part(part) for part in name.split("/")):
        raise StoreError(f"{name!r} is not a valid file name: use letters, digits, '.', '_', '-' between slashes")


class Store(Protocol):
    """Files by name. A name is a relative path with forward slashes, such as `checkpoints/readings/3/000…042.npz`.

    If the store fails, every method raises `StoreError` with one line that names the path and the cause. It also does
    for a name that `check_name` refuses. Any number of processes may use one store at the same time.
    """

    location: str
    """The absolute path or the URL of the store, without secrets."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably and atomically: a reader sees the old file or the new one, never a part of it.

        If it raises, the old file (or its absence) remains. The exception is the last step, the flush of the folder: if
        this fails, the new file may already be there, complete.
        """

    def create(self, name: str, data: bytes) -> bool:
        """If no file has this name, write it and return True; else return False and change nothing.

        It is as durable and atomic as `write`. If several processes create the same name at once, only one gets True;
        if this one dies, or gets no answer in time, none does. If the file has more than 16 MiB, a bucket may let
        several of them create it.
        """

    def read(self, name: str) -> bytes:
        """Return the file's content. Raises `FileNotFoundError` if the file does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the full names of the files and folders directly in `folder`, sorted; [] if it does not exist."""

    def snapshot(self, folder: str) -> "Store":
        """Return a short-lived view of the store, which may answer all listings below `folder` from one, made now.

        So many listings cost a single request. The view shows its own writes, but may not show later writes by others.
        """
        return self

    def delete(self, name: str) -> None:
        """Remove the file. If it does not exist, do nothing."""

    def missing(self) -> str | None:
        """If the store does not exist yet, and the first write would create it, return its location; else None."""
        return None

    def check(self) -> None:
        """Check that the store can be written and read. Raises `StoreError` with the cause and a remedy."""


def topics_in(store: Store, *folders: Literal["checkpoints", "models"]) -> list[str]:
    """Return the topics that have files in one of these folders, sorted."""
    return sorted({name.rsplit("/", 1)[-1] for folder in folders for name in store.names(folder)})


def other_topics(store: Store, topic: str) -> str:
    """Return the end of a sentence about a topic without a model: which topics have models; "" if none has."""
    others = [other for other in topics_in(store, "models") if other != topic]
    return f"; the store has models of {listed(others)}" if others else ""
