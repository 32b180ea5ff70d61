"""The most unusual messages learned recently: those whose squared residual is the largest multiple of the usual one.

Learning has scored every message before learning it, so a batch costs one comparison for each of its blocks. Key and
dimensions are looked up only for the few messages that are listed. Origins of pending messages, which are scored when
their block is full, are in memory alone: after a restart the pending messages of a checkpoint are not listed.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streampca.pca import learning
from streampca.pca.arrays import F64, Array
from streampca.pca.learning import LearningConfig
from streampca.pca.state_scores import StateScorer
from streampca.stores.worker_status import UnusualStatus, key_text
from streampca.stream.events import Vectors
from streampca.stream.fold import EWMA_MESSAGES, Fold, FoldStats
from streampca.stream.screening import Learned
from streampca.worker.origins import LearnedMessages, Origin, PendingOrigins

MOST = 10  # messages in the list
SPAN_S = 1800.0  # the list covers the current span and the one before
_LEAST = 1.0  # ratio of a listed message
_NAMED = 3  # dimensions


class UnusualMessages:
    """The unusual messages of a worker's partitions; `clock` gives seconds since 1970."""

    def __init__(self, config: LearningConfig, clock: Callable[[], float] = time.time) -> None:
        self._config, self._clock = config, clock
        self._waiting: dict[int, PendingOrigins] = {}  # partition →
        self._began = -math.inf
        self._past: list[UnusualStatus] = []  # of the span before
        self._found: list[UnusualStatus] = []  # of the current one
        self.all: Sequence[UnusualStatus] = ()  # the most unusual message first

    def learn(self, event: Vectors, before: Fold, learned: Learned) -> None:
        """Look at the messages that an event has added to the fold `before`, and at those that were pending."""
        batch = LearnedMessages.of(event, learned.rejects)
        waiting = self._waiting.setdefault(event.partition, PendingOrigins())
        residuals = [scores.residual for scores in learned.scores if len(scores.residual)]
        if residuals:
            residual = residuals[0] if len(residuals) == 1 else np.concatenate(residuals)
            self._look(residual, _Messages(before, learned, waiting, batch, self._config))
        if learned.fold.state.count:  # messages of a first block are not scored
            waiting.add(batch, len(learned.fold.pending))

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop the origins of pending messages: another worker may learn these."""
        for partition in partitions:
            self._waiting.pop(partition, None)

    def cut(self, partition: int, offset: int) -> None:
        """Forget what the partition's log held from this offset on: it holds other records now."""
        self.forget([partition])
        self._past, self._found = (
            [each for each in part if each.partition != partition or each.offset < offset]
            for part in (self._past, self._found)
        )
        self._rank()

    def _look(self, residual: F64, messages: "_Messages") -> None:
        """List messages that are more unusual than those listed, from whole blocks with these ‖r‖²."""
        blocks, now = residual.reshape(-1, self._config.block), self._clock()
        usual = _usual(messages.before.stats, blocks)
        if now - self._began >= SPAN_S:
            self._began, self._past, self._found = now, self._found, []
            self._rank()
        highest = np.maximum.reduce(blocks, axis=1).tolist()
        if any(most > self._least * mean for most, mean in zip(highest, usual, strict=True)):
            ratio = messages.ratios(residual, usual)
            first = messages.learned - len(ratio)
            for place in np.argsort(-ratio, kind="stable")[:MOST].tolist():
                if ratio[place] > self._least:
                    self._add(messages, first + place, float(ratio[place]))
            self._rank()

    @property
    def _least(self) -> float:
        """The ratio that a message must exceed."""
        return self._found[-1].ratio if len(self._found) == MOST else _LEAST

    def _add(self, messages: "_Messages", place: int, ratio: float) -> None:
        """List a message, unless it is listed: what is lost with its partition may be learned again."""
        partition, (offset, vector, key) = messages.batch.event.partition, messages.origin(place)
        for each in (*self._past, *self._found):
            if (each.partition, each.offset, each.vector) == (partition, offset, vector):
                return
        deviations = messages.scorer.deviations(messages.vector(place), _NAMED)
        found = UnusualStatus(
            partition=partition,
            offset=offset,
            vector=vector,
            key=key_text(key),
            at=self._clock(),
            ratio=ratio,
            dimensions=[dimension for dimension, _ in deviations],
            shares=[share for _, share in deviations],
        )
        self._found = _ranked([*self._found, found])

    def _rank(self) -> None:
        self.all = _ranked([*self._found, *self._past])


@dataclass(frozen=True)
class _Messages:
    """The messages that were pending in the fold `before`, and after them those of a batch."""

    before: Fold
    after: Learned
    waiting: PendingOrigins
    batch: LearnedMessages
    config: LearningConfig

    @property
    def learned(self) -> int:
        """How many of them have been learned: whole blocks."""
        return self.after.fold.state.count - self.before.state.count

    def ratios(self, residual: F64, usual: Sequence[float]) -> F64:
        """‖r‖² of the last n learned, (n,), by the usual one before their block; 0 where the origin is not known."""
        norm = np.concatenate([scores.norm for scores in self.after.scores])
        rounding = np.finfo(self.config.dtype).eps * norm + np.finfo(np.float64).tiny
        ratio: F64 = residual / np.maximum(np.repeat(usual, self.config.block), rounding)
        unknown = len(self.before.pending) - len(self.waiting)
        ratio[: max(unknown - (self.learned - len(ratio)), 0)] = 0.0
        return ratio

    @cached_property
    def scorer(self) -> StateScorer:
        """By the state before all of them; after a first block, if there was none."""
        state = self.before.state
        if not state.count:
            V, rows = self.batch.event.decoded.vectors, self.batch.rows
            first = np.concatenate([self.before.pending, V if rows is None else V[rows]])[: self.config.start]
            state, _ = learning.learn(state, first, np.ones(len(first)), self.config)
        return StateScorer(state, self.config.components)

    def origin(self, place: int) -> Origin:
        """Of one message."""
        i = place - len(self.before.pending)
        return self.waiting.origin(i) if i < 0 else self.batch.origin(i)

    def vector(self, place: int) -> Array:
        """One message, (d,)."""
        i = place - len(self.before.pending)
        return self.before.pending[i] if i < 0 else self.batch.vector(i)


def _usual(stats: FoldStats, blocks: F64) -> list[float]:
    """The mean of recent ‖r‖² before each of the blocks (m, n) of ‖r‖², as `stats.loss_ewma` is; inf before any."""
    kept, mean = (1 - 1 / EWMA_MESSAGES) ** blocks.shape[1], stats.loss_ewma if stats.scored else math.inf
    found = []
    for total in np.add.reduce(blocks, axis=1).tolist():
        found.append(mean)
        of_block = total / blocks.shape[1]
        mean = kept * mean + (1 - kept) * of_block if mean < math.inf else of_block
    return found


def _ranked(messages: Sequence[UnusualStatus]) -> list[UnusualStatus]:
    return sorted(messages, key=lambda each: -each.ratio)[:MOST]
