"""The newest checkpoint of each partition, of which a model is made; cached until the partition moves.

Each request to a store in a bucket costs money. A worker's own checkpoints are in its memory; those of others are
cached as they were read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from streampca.fold import compatibility
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import FoldConfig
from streampca.pca.learning import LearningConfig
from streampca.stores.checkpoints import Checkpoints

CACHED_BYTES = 64 * 2**20  # what does not fit is read again, so that memory does not grow with the number of partitions


class NewestCheckpoints:
    """Reads the newest checkpoints of all partitions, and caches those that fit."""

    def __init__(self, fold_config: FoldConfig) -> None:
        self._fold_config = fold_config
        self._cache: dict[int, Checkpoint] = {}

    def read(
        self, stored: Checkpoints, offsets: Mapping[int, int], in_memory: Iterable[Checkpoint]
    ) -> Iterator[Checkpoint]:
        """The checkpoints at these offsets, by partition; those `in_memory` need not be read.

        At most one at a time is held that is not in memory already.
        """
        ours = {checkpoint.partition: checkpoint for checkpoint in in_memory}
        for partition, offset in offsets.items():
            in_cache = [c for c in (ours.get(partition), self._cache.get(partition)) if c and c.fold.position == offset]
            if in_cache:
                yield compatibility.with_settings(in_cache[0], self._fold_config)
            elif read := stored.newest(partition, trusted=True):  # an older one, if the newest is damaged
                read = compatibility.with_settings(read, self._fold_config)
                self._put(_without_pending(read, self._fold_config.learning))
                yield read

    def _put(self, checkpoint: Checkpoint) -> None:
        self._cache.pop(checkpoint.partition, None)
        if sum(map(_nbytes, self._cache.values())) + _nbytes(checkpoint) <= CACHED_BYTES:
            self._cache[checkpoint.partition] = checkpoint


def _without_pending(checkpoint: Checkpoint, config: LearningConfig) -> Checkpoint:
    """The checkpoint with its pending messages learned, as it is merged; they need not be scored again."""
    fold = replace(checkpoint.fold, state=checkpoint.fold.provisional(config)).without_pending()
    return replace(checkpoint, fold=fold)


def _nbytes(checkpoint: Checkpoint) -> int:
    state = checkpoint.fold.state
    return state.C.nbytes + state.mean.nbytes + (0 if state.covariance is None else state.covariance.nbytes)
