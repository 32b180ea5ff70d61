"""Learns the records of an event without the implausible ones.

A record is judged before any of its vectors is learned, by the partition's state after its last whole block. So the
judgement, like the fold, is a function of the partition's records, whatever the batches in which they arrive.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.losses import Losses
from streampca.stream import plausibility
from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold, FoldConfig


class Learned(NamedTuple):
    """A fold after records, the losses of its new blocks, and all records that are not in it, in order."""

    fold: Fold
    losses: list[Losses]
    rejects: list[Reject]


def learn(fold: Fold, event: Vectors, fold_config: FoldConfig, implausible_factor: float) -> Learned:
    """Learn the records of an event that are at most `implausible_factor` times as far from the mean as is usual.

    0: all of them.
    """
    V, places, rejects, counts = event.decoded
    if not implausible_factor or plausibility.surely_plausible(fold, V, fold_config, implausible_factor):
        return Learned(*fold.learn(V, event.timestamps, event.next, fold_config, counts), rejects)
    firsts, start = np.cumsum(counts) - counts, 0
    losses: list[Losses] = []
    implausible: list[Reject] = []
    while start < len(counts):
        room = fold_config.learning.next_block(fold.state) - len(fold.pending)
        end = int(np.searchsorted(firsts, firsts[start] + room))  # the records that begin within the next block
        block = V[firsts[start] : firsts[end - 1] + counts[end - 1]]
        good, found = plausibility.judge(fold, block, counts[start:end], implausible_factor)
        implausible += [Reject(int(places[start + i]), "implausible", text) for i, text in found]
        stamps, sizes = event.timestamps[start:end], counts[start:end]
        if not good.all():
            block, stamps, sizes = block[np.repeat(good, sizes)], stamps[good], sizes[good]
        fold, new = fold.learn(block, stamps, fold.position, fold_config, sizes)
        losses, start = losses + new, end
    return Learned(fold.at(event.next), losses, sorted([*rejects, *implausible]))
