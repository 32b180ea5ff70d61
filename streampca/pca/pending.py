"""Batches of any size, learned in whole blocks: messages that do not fill a block wait for the next batch.

Blocks are cut on the number of messages learned, never where a batch ends, so the result does not depend on the sizes
of the batches, not even in its last bit.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from streampca.pca import learning
from streampca.pca.arrays import F64, Array
from streampca.pca.learning import LearningConfig
from streampca.pca.losses import Losses
from streampca.pca.state import State

T = TypeVar("T")


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


class Learner(Protocol[T]):
    """A way to learn a stream: what its state is, and how the state takes up messages."""

    @property
    def config(self) -> LearningConfig:
        """The parameters of the model."""
        ...

    def empty(self) -> T:
        """The state before the first message."""
        ...

    def next_block(self, state: T) -> int:
        """Messages in the next block; every later one has `config.block`."""
        ...

    def learn(self, state: T, messages: Messages) -> tuple[T, Losses]:
        """Learn messages, cut into blocks from the first on; the last block may be shorter."""
        ...

    def as_unit_gauge(self, state: T) -> State:
        """The state with its factor scaled so that C Cᵀ estimates the covariance."""
        ...


@dataclass(frozen=True)
class UnitGauge:
    """The default: η = 1/w, and C rescaled after every block (learning.py)."""

    config: LearningConfig

    def empty(self) -> State:
        """The state before the first message."""
        return State.empty(self.config.dimensions, self.config.dtype)

    def next_block(self, state: State) -> int:
        """Messages in the next block: the first one is `config.start` long."""
        return self.config.next_block(state)

    def learn(self, state: State, messages: Messages) -> tuple[State, Losses]:
        """Learn messages, cut into blocks from the first on; the last block may be shorter."""
        return learning.learn(state, messages.V, messages.retention, self.config)

    def as_unit_gauge(self, state: State) -> State:
        """The state itself."""
        return state


def learn_whole_blocks(
    learner: Learner[T], state: T, pending: Messages, new: Messages
) -> tuple[T, Messages, list[Losses]]:
    """Learn the whole blocks among the pending messages and the new ones after them.

    Returns the state, the messages that are still pending, and the scores of what was learned. Only the block that
    begins with pending messages is copied.
    """
    waiting, first, block = len(pending.V), learner.next_block(state), learner.config.block
    beyond_first = waiting + len(new.V) - first
    if beyond_first < 0:
        return state, pending.followed_by(new), []
    head = first - waiting if waiting else 0
    end = first - waiting + beyond_first // block * block
    parts = [pending.followed_by(new.part(0, head))] if waiting else []
    scores = []
    for part in [*parts, new.part(head, end)] if end > head else parts:
        state, of_part = learner.learn(state, part)
        scores.append(of_part)
    rest = new.part(end, len(new.V))
    return state, Messages(rest.V.copy(), rest.retention.copy()), scores
