"""The seam between us and the disk: named files that appear whole or not at all."""

from typing import Protocol


class Store(Protocol):
    """Files by name; a name is a relative path with forward slashes, such as `checkpoints/readings/3/000…042.npz`.

    Every method raises `StoreError` with one line that names the path and the cause when the store fails.
    Any number of processes may use one store at the same time.
    """

    def write(self, name: str, data: bytes) -> None:
        """Make `name` hold `data`, durably, in one step: a reader sees the old file or the new one, never a part.

        When it raises, the old file (or its absence) is still there.
        """

    def read(self, name: str) -> bytes:
        """The whole file. Raises `FileNotFoundError` when there is none by that name."""

    def names(self, folder: str) -> list[str]:
        """Names (full, as `read` takes them) of the files and folders directly in `folder`, sorted; [] if absent."""

    def delete(self, name: str) -> None:
        """Remove the file; harmless when it is gone already."""

    def check(self) -> None:
        """Prove that the store can be written and read, or raise `StoreError` saying why not and what to do."""
