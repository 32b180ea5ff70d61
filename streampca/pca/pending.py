"""Batches of any size, learned in whole blocks: messages that do not fill a block wait for the next batch.

Blocks are cut on the number of messages learned, never where a batch ends, so the result does not depend on the sizes
of the batches, not even in its last bit.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.learning import BeforeBlock, LearningConfig, first_block, ignore, learn
from streampca.pca.losses import Losses
from streampca.pca.state import State


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

    Returns the state, the messages that are still pending, and the losses of those learned. Only the block that begins
    with pending messages is copied.
    """
    losses = []
    if not state.count:
        stream = pending.followed_by(new)
        first = first_block(stream.V, config)
        if first > len(stream.V):
            return state, stream, []
        state, of_first = learn(state, stream.V[:first], stream.retention[:first], config, before_block)
        losses, pending, new = [of_first], stream.part(0, 0), stream.part(first, len(stream.V))
    waiting, whole = len(pending.V), 0
    while whole + (block := config.next_block(state.count + whole)) <= waiting + len(new.V):
        whole += block
    if not whole:
        return state, pending.followed_by(new), losses
    head = config.next_block(state.count) - waiting if waiting else 0
    end = whole - waiting
    parts = [pending.followed_by(new.part(0, head))] if waiting else []
    for part in [*parts, new.part(head, end)] if end > head else parts:
        state, of_part = learn(state, part.V, part.retention, config, before_block)
        losses.append(of_part)
    rest = new.part(end, len(new.V))
    return state, Messages(rest.V.copy(), rest.retention.copy()), losses
