"""The seam between us and the disk: named files that appear whole or not at all."""

import re
from typing import Protocol

from streampca.errors import StoreError

_PART = re.compile(r"[A-Za-z0-9._-]{1,255}")  # what Kafka allows in a topic's name


def is_part(text: str) -> bool:
    """Whether `text` may stand between two slashes of a name."""
    return _PART.fullmatch(text) is not None and text not in (".", "..")


def check_name(name: str) -> None:
    """Raise `StoreError` unless `name` is a relative path of ordinary parts, so that nothing leaves the store."""
    if not all(is_part(part) for part in name.split("/")):
        raise StoreError(
            f"{name!r} cannot name a file of the store: letters, digits, '.', '_', '-' between slashes can"
        )


class Store(Protocol):
    """Files by name; a name is a relative path with forward slashes, such as `checkpoints/readings/3/000…042.npz`.

    Every method raises `StoreError` with one line that names the path and the cause when the store fails, and for a
    name that `check_name` refuses.
    Any number of processes may use one store at the same time.
    """

    def write(self, name: str, data: bytes) -> None:
        """Make `name` hold `data`, durably, in one step: a reader sees the old file or the new one, never a part.

        When it raises, the old file (or its absence) is still there; only if the very last step fails, the flush of
        the folder, may the new file be there already, whole.
        """

    def read(self, name: str) -> bytes:
        """The whole file. Raises `FileNotFoundError` when there is none by that name."""

    def names(self, folder: str) -> list[str]:
        """Names (full, as `read` takes them) of the files and folders directly in `folder`, sorted; [] if absent."""

    def delete(self, name: str) -> None:
        """Remove the file; harmless when it is gone already."""

    def check(self) -> None:
        """Prove that the store can be written and read, or raise `StoreError` saying why not and what to do."""
