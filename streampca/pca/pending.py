"""Batches of any size, learned in whole blocks: messages that do not fill a block wait for the next batch.

So the sizes of the batches change no bit of the result.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.learning import BeforeBlock, LearningConfig, first_block, ignore, learn
from streampca.pca.state import Losses, State


class Messages(NamedTuple):
    """Messages in the order of the stream."""

    V: Array  # (n, d)
    retention: F64  # (n,): ρ, the share of the past that each message keeps

    def part(self, start: int, end: int) -> "Messages":
        """Messages start … end−1."""
        return Messages(self.V[start:end], self.retention[start:end])

    def followed_by(self, later: "Messages") -> "Messages":
        """These messages and later ones, copied."""
        return Messages(np.concatenate([self.V, later.V]), np.concatenate([self.retention, later.retention]))


def learn_whole_blocks(
    config: LearningConfig, state: State, pending: Messages, new: Messages, before_block: BeforeBlock = ignore
) -> tuple[State, Messages, list[Losses]]:
    """Learn the whole blocks among the pending messages and the new ones after them.

    Returns the state, the messages that are still pending, and the losses of each block. Only the first block of a
    stream, one that begins with pending messages, and what remains are copied.
    """
    none, losses = pending.part(0, 0), list[Losses]()
    if not state.count:
        pending, new = none, pending.followed_by(new)
    while True:
        size = config.next_block(state.count) if state.count else first_block(new.V, config)
        missing = size - len(pending.V)
        if missing > len(new.V):
            return state, pending.followed_by(new), losses
        block, new = new.part(0, missing), new.part(missing, len(new.V))
        block, pending = pending.followed_by(block) if len(pending.V) else block, none
        state, of_block = learn(state, block.V, block.retention, config, before_block)
        losses.append(of_block)
