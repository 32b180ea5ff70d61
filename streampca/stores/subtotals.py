"""Subtotals in a store: `checkpoints/<topic>/subtotals/<range>/<sum of the offsets, 20 digits>.npz`."""

from streampca.stores import numbered
from streampca.stores.base import Store
from streampca.stream import subtotal as files
from streampca.stream.subtotal import Subtotal

_KEPT = 2  # the publisher may still read the one before


class Subtotals:
    """The subtotals of one topic, by the number of their range of partitions and by their progress.

    They can be merged again from checkpoints at any time.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder

    def progress(self, number: int) -> list[int]:
        """The progress of each subtotal of a range, ascending."""
        return numbered.numbers(self._store, self._folder_of(number))

    def load(self, number: int, progress: int) -> Subtotal:
        """One subtotal. Raises `FileNotFoundError` or `DamagedFileError`."""
        return files.decode(self._store.read(numbered.path(self._folder_of(number), progress)))

    def save(self, number: int, subtotal: Subtotal) -> None:
        """Write a subtotal, then delete the range's oldest ones."""
        folder, data = self._folder_of(number), files.encode(subtotal)
        numbered.write(self._store, folder, subtotal.progress, data, self.progress(number), _KEPT)

    def _folder_of(self, number: int) -> str:
        return f"{self._folder}/{number}"
