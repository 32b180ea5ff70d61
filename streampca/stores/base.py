"""The interface of stores: named files, written atomically."""

import re
from collections.abc import Callable
from typing import Literal, Protocol

from streampca.errors import StoreError, listed

Observe = Callable[[str, str, float, int], None]
"""Takes an operation, its outcome (ok, missing or error), its duration in seconds, and its number of requests."""

_PART = re.compile(r"[A-Za-z0-9._-]{1,255}")  # what Kafka allows in a topic's name


def ignore(operation: str, outcome: str, seconds: float, requests: int) -> None:
    """An `Observe` that does nothing."""


def is_part(text: str) -> bool:
    """Return whether `text` is valid as one part of a name, between slashes."""
    return _PART.fullmatch(text) is not None and text not in (".", "..")


def check_name(name: str) -> None:
    """Raise `StoreError` unless `name` is a relative path of valid parts, so that it cannot leave the store."""
    if not all(is_part(part) for part in name.split("/")):
        raise StoreError(f"{name!r} is not a valid file name: use letters, digits, '.', '_', '-' between slashes")


class Store(Protocol):
    """Files by name; a name is a relative path with forward slashes, such as `checkpoints/readings/3/000…042.npz`.

    Every method raises `StoreError` with one line that names the path and the cause when the store fails, and for a
    name that `check_name` refuses.
    Any number of processes may use one store at the same time.
    """

    location: str
    """The absolute path or the URL of the store, without secrets."""

    def write(self, name: str, data: bytes) -> None:
        """Write `data` to `name` durably and atomically: a reader sees the old file or the new one, never a part.

        If it raises, the old file (or its absence) remains; only if the last step fails, the flush of the folder, may
        the new file already be there, complete.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless one has that name; then return False and change nothing.

        As durable and atomic as `write`. Of several processes that create the same name at once, one gets True, or none
        if that one died or got no answer in time. A bucket may let several create a file of over 16 MiB.
        """

    def read(self, name: str) -> bytes:
        """The file's content. Raises `FileNotFoundError` if it does not exist."""

    def names(self, folder: str) -> list[str]:
        """Full names of the files and folders directly in `folder`, sorted; [] if it does not exist."""

    def snapshot(self, folder: str) -> "Store":
        """A view whose listings below `folder` may be fixed now, plus its own writes.

        Costs one request however many listings follow. Short-lived: later writes by others are invisible.
        """
        return self

    def delete(self, name: str) -> None:
        """Remove the file; does nothing if it does not exist."""

    def missing(self) -> str | None:
        """The location of a store that does not exist yet; None if it exists, or if no write creates it."""
        return None

    def check(self) -> None:
        """Check that the store can be written and read. Raises `StoreError` with the cause and a remedy."""


def topics_in(store: Store, *folders: Literal["checkpoints", "models"]) -> list[str]:
    """Topics that have a folder of their own in one of these folders, sorted."""
    return sorted({name.rsplit("/", 1)[-1] for folder in folders for name in store.names(folder)})


def other_topics(store: Store, topic: str) -> str:
    """The end of a sentence about a topic that has no model: those that have one."""
    others = [other for other in topics_in(store, "models") if other != topic]
    return f"; the store has models of {listed(others)}" if others else ""
