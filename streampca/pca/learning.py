"""Learns a stream in one pass, block by block: from one `State` to the next (docs/mathematics.md, section 4)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.block_step import learn_block
from streampca.pca.learning_config import LearningConfig
from streampca.pca.state import Losses, State, join_losses

__all__ = ["BeforeBlock", "LearnedBlocks", "LearningConfig", "Messages", "learn", "learn_whole_blocks"]

BeforeBlock = Callable[[State, Array], object]  # called before a block is learned, with the state and the block (n, d)


class Messages(NamedTuple):
    """Messages in the order of the stream."""

    V: Array  # (n, d)
    retention: F64  # (n,): ρ, the share of the past that each message keeps

    def part(self, start: int, end: int) -> "Messages":
        """Return the messages start … end−1, as views."""
        return Messages(self.V[start:end], self.retention[start:end])

    def followed_by(self, later: "Messages") -> "Messages":
        """Return copies of these messages and of `later`, in this order."""
        return Messages(np.concatenate([self.V, later.V]), np.concatenate([self.retention, later.retention]))


class LearnedBlocks(NamedTuple):
    """The results of learning some whole blocks."""

    state: State
    pending: Messages  # too few for the next block
    losses: list[Losses]  # of each block


def learn(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn V (n, d) in blocks, of which the last may be shorter; return the next state and the losses.

    `retention` (n,) holds the share of the past that each message keeps. The first block of a stream has no losses,
    because there is no model before it.
    """
    new = Messages(np.asarray(V, config.dtype), retention)
    no_messages = new.part(0, 0)
    learned = learn_whole_blocks(config, state, pending=no_messages, new=new)
    rest = learned.pending
    if not len(rest.V):
        return learned.state, join_losses(learned.losses)
    state, losses_of_rest = learn_block(learned.state, rest.V, rest.retention, config)
    return state, join_losses([*learned.losses, losses_of_rest])


def learn_whole_blocks(
    config: LearningConfig, state: State, pending: Messages, new: Messages, before_block: BeforeBlock | None = None
) -> LearnedBlocks:
    """Learn the pending messages and then the new messages, as far as they fill whole blocks."""
    no_messages = pending.part(0, 0)
    rest = new
    losses: list[Losses] = []
    while True:
        needed = config.next_block_size(state.weight) - len(pending.V)  # new messages that fill the block
        if needed > len(rest.V):
            return LearnedBlocks(state=state, pending=pending.followed_by(rest), losses=losses)
        block = rest.part(0, needed)
        rest = rest.part(needed, len(rest.V))
        if len(pending.V):  # if nothing is pending, `followed_by` would only copy the block
            block = pending.followed_by(block)
            pending = no_messages
        if before_block:
            before_block(state, block.V)
        state, block_losses = learn_block(state, block.V, block.retention, config)
        losses.append(block_losses)
