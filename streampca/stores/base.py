"""The interface of stores: named files, written atomically."""

import re
from collections.abc import Callable
from typing import Literal, Protocol

from streampca.errors import StoreError, list_names

Observe = Callable[[str, str, float, int], None]
"""Called after each operation with its name, its outcome (ok, missing or error), its seconds and its requests."""

# A part of a name, between slashes. Topics are such parts, so everything that Kafka allows in their names is allowed.
_PART = re.compile(r"[A-Za-z0-9._-]{1,255}")


def observe_nothing(operation: str, outcome: str, seconds: float, requests: int) -> None:
    """Do nothing. This is the `Observe` of stores that nobody observes."""


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

        After an error, the store holds the old file or the complete new one.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write the file and return True if no file has this name. Otherwise change nothing and return False.

        It is as durable and atomic as `write`. If several processes create the same name at once, at most one gets
        True. A bucket guarantees this only for files of at most 16 MiB.
        """

    def read(self, name: str) -> bytes:
        """Return the file's content. Raises `FileNotFoundError` if the file does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the full names of the files and folders directly in `folder`, sorted; [] if it does not exist."""

    def size(self, name: str) -> int:
        """Return the bytes of a file that `names` has listed; 0 if it is gone meanwhile."""

    def snapshot(self, folder: str) -> "Store":
        """Return a short-lived view of the store, with which `names` and `size` are cheap below `folder`.

        The view shows its own writes, but may not show later writes of other processes.
        """
        return self  # enough if `names` and `size` are cheap without a view

    def delete(self, name: str) -> None:
        """Remove the file. If it does not exist, do nothing."""

    def missing(self) -> str | None:
        """Return the store's location if it does not exist yet and the first write would create it; else None."""
        return None

    def check(self) -> None:
        """Check that the store can be written and read. Raises `StoreError` with the cause and a remedy."""


def list_topics(store: Store, *folders: Literal["checkpoints", "models"]) -> list[str]:
    """Return the topics that have files in one of these folders, sorted."""
    paths = [path for folder in folders for path in store.names(folder)]
    topics = {path.rsplit("/", 1)[-1] for path in paths}
    return sorted(topics)


def describe_other_topics(store: Store, topic: str) -> str:
    """Return the end of an error's sentence, which lists the other topics that have models; "" if there are none."""
    other_topics = [listed for listed in list_topics(store, "models") if listed != topic]
    if not other_topics:
        return ""
    return f"; the store has models of {list_names(other_topics)}"
