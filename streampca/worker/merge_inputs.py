"""What is merged into a model: the newest checkpoint of each partition, cached until the partition moves.

Each request to a store in a bucket costs money. A worker's own checkpoints are in its memory; those of others are
cached as they were read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from streampca.pca.learning import LearningConfig
from streampca.stores.checkpoints import Checkpoints
from streampca.stream import compatibility
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import Fold, FoldConfig

CACHED_BYTES = 64 * 2**20  # what does not fit is read again, so that memory does not grow with the number of partitions


class CheckpointCache:
    """The newest checkpoint of each partition that was read, if it fits."""

    def __init__(self) -> None:
        self._checkpoints: dict[int, Checkpoint] = {}

    def find(self, partition: int, offset: int) -> Checkpoint | None:
        """The checkpoint of a partition, if it is cached at this offset."""
        cached = self._checkpoints.get(partition)
        return cached if cached and cached.fold.position == offset else None

    def put(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint of a partition."""
        self._checkpoints.pop(checkpoint.partition, None)
        if sum(map(_nbytes, self._checkpoints.values())) + _nbytes(checkpoint) <= CACHED_BYTES:
            self._checkpoints[checkpoint.partition] = checkpoint

    def clear(self) -> None:
        """Forget everything."""
        self._checkpoints.clear()


class MergeInputs:
    """The newest checkpoints of all partitions, as of one listing of the store."""

    def __init__(
        self, stored: Checkpoints, in_memory: Iterable[Checkpoint], cache: CheckpointCache, fold_config: FoldConfig
    ) -> None:
        """`in_memory` are checkpoints that need not be read, if they are the newest."""
        self._stored, self._cache, self._fold_config = stored, cache, fold_config
        self._in_memory = {(checkpoint.partition, checkpoint.fold.position): checkpoint for checkpoint in in_memory}
        self.offsets = {p: found[-1] for p in stored.partitions() if (found := stored.offsets(p))}

    def __iter__(self) -> Iterator[Checkpoint]:
        """By partition; at most one at a time is held that is not in memory already."""
        for partition, offset in self.offsets.items():
            found = self._in_memory.get((partition, offset)) or self._cache.find(partition, offset)
            if found:
                yield compatibility.with_settings(found, self._fold_config)
            elif read := self._stored.newest(partition, trusted=True):  # an older one, if the newest is damaged
                read = compatibility.with_settings(read, self._fold_config)
                self._cache.put(_without_pending(read, self._fold_config.learning))
                yield read


def _without_pending(checkpoint: Checkpoint, config: LearningConfig) -> Checkpoint:
    """The checkpoint with its pending messages learned, as it is merged; they need not be scored again."""
    fold, empty = checkpoint.fold, Fold.empty(config)
    fold = replace(fold, state=fold.provisional(config), pending=empty.pending, retention=empty.retention)
    return replace(checkpoint, fold=fold)


def _nbytes(checkpoint: Checkpoint) -> int:
    state = checkpoint.fold.state
    return state.C.nbytes + state.mean.nbytes
