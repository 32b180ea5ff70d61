"""What is merged into a model: checkpoints and subtotals, of which those that did not move are not read again.

Each request to a store in a bucket costs money. A worker's own checkpoints are in its memory; those of others and their
subtotals are cached as they were read, until they are replaced by newer ones.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from streampca.errors import DamagedFileError
from streampca.stores.checkpoints import Checkpoints
from streampca.stream import compatibility
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import FoldConfig
from streampca.stream.subtotal import RECENT, Subtotal
from streampca.worker import ranges

CACHED_BYTES = 64 * 2**20  # what does not fit is read again, so that memory does not grow with the number of partitions


class PartCache:
    """Parts as they were read: of each partition and of each range the newest, if it fits."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[int, Subtotal]] = {}

    def find(self, name: str, progress: int) -> Subtotal | None:
        """The part of that name, if it is cached at this progress."""
        known, part = self._parts.get(name, (None, None))
        return part if known == progress else None

    def put(self, name: str, part: Subtotal) -> None:
        """Replace the part of that name."""
        self._parts.pop(name, None)
        if sum(kept.nbytes for _, kept in self._parts.values()) + part.nbytes <= CACHED_BYTES:
            self._parts[name] = part.progress, part

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()


class Parts:
    """The newest checkpoints and subtotals of all partitions, as of one listing of the store."""

    def __init__(
        self, stored: Checkpoints, in_memory: Iterable[Checkpoint], cache: PartCache, fold_config: FoldConfig
    ) -> None:
        """`in_memory` are checkpoints that need not be read, if they are the newest."""
        self._stored, self._cache, self._fold_config = stored, cache, fold_config
        self._in_memory = {(checkpoint.partition, checkpoint.fold.position): checkpoint for checkpoint in in_memory}
        self.offsets = {p: found[-1] for p in stored.partitions() if (found := stored.offsets(p))}
        self.by_range = ranges.split(self.offsets)

    def folds(self, offsets: Mapping[int, int]) -> Iterator[Subtotal]:
        """The newest checkpoints of these partitions; at most one at a time is held that is not in memory already."""
        for partition, offset in offsets.items():
            if found := self._fold(partition, offset):
                yield found

    def subtotal(self, number: int, lowest: int) -> Subtotal | None:
        """The newest subtotal of a range that is not ahead of its checkpoints, nor behind the progress `lowest`."""
        of_range, subtotals = self.by_range[number], self._stored.subtotals
        for progress in reversed(subtotals.progress(number)):
            if lowest <= progress <= sum(of_range.values()):
                try:
                    found = self._cache.find(_range(number), progress) or subtotals.load(number, progress)
                except (FileNotFoundError, DamagedFileError):  # pruned since it was listed, or to be merged again
                    continue
                if found.settings == self._fold_config.as_dict() and found.positions.keys() == of_range.keys():
                    self._cache.put(_range(number), found)
                    return found
        return None

    def is_merged(self, number: int) -> bool:
        """Whether the store has the subtotal of a range at its newest checkpoints."""
        return sum(self.by_range[number].values()) in self._stored.subtotals.progress(number)

    def save(self, number: int, subtotal: Subtotal) -> None:
        """Write the subtotal of a range."""
        self._stored.subtotals.save(number, subtotal)
        self._cache.put(_range(number), subtotal)

    def _fold(self, partition: int, offset: int) -> Subtotal | None:
        """The newest undamaged checkpoint; `offset` is that of the newest."""
        if found := self._in_memory.get((partition, offset)):
            return self._part(found)
        if cached := self._cache.find(_partition(partition), offset):
            return cached
        if read := self._stored.newest(partition, trusted=True):
            part = self._part(read)
            recent = {partition: part.recent[partition][-RECENT:].copy()}  # all before it were in a model
            self._cache.put(_partition(partition), replace(part, recent=recent))
            return part
        return None

    def _part(self, checkpoint: Checkpoint) -> Subtotal:
        config = self._fold_config
        return Subtotal.of(compatibility.with_settings(checkpoint, config), config.learning)


def _partition(number: int) -> str:
    return f"partition {number}"


def _range(number: int) -> str:
    return f"range {number}"
