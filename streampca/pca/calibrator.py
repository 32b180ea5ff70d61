"""Learns, beside a model, what its scores usually are: one block in sixteen is scored before it is learned.

Which messages are scored depends on their numbers alone, so no bit depends on how many arrive together.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from streampca.pca.anomaly import Calibration
from streampca.pca.arrays import Array
from streampca.pca.state import State
from streampca.pca.state_scores import StateScorer

SCORED = 256  # messages in a row
EVERY = 16 * SCORED  # messages from the first of them to the first of the next


def parts(V: Array, seen: int, first: int) -> Iterator[tuple[Array, int]]:
    """Cuts messages (n, d), which follow `seen` others, into parts that are scored or not, each with its place.

    The place is that of the part's first message among 256 that are scored, or -1. The first block, of `first`
    messages, and the one after it are not scored.
    """
    start = first + SCORED
    while len(V):
        place = (seen - start) % EVERY if seen >= start else -1
        if 0 <= place < SCORED:
            end = SCORED - place
        else:
            end, place = (EVERY - place if place >= 0 else start - seen), -1
        yield V[:end], place
        V, seen = V[end:], seen + end


@dataclass(frozen=True, eq=False)
class Calibrator:
    """The past scores of a stream."""

    calibration: Calibration = field(default_factory=Calibration.empty)
    scorer: StateScorer | None = None  # of the block that is being scored

    def scored(self, state: Callable[[], State], k: int, V: Array, place: int) -> "Calibrator":
        """With the scores of messages (n, d), the first of which has this place among 256, before they are learned.

        `state` gives the stream's state. Older scores keep e^(−n/w) of their weight, with n the messages since then and
        w the state's weight.
        """
        scorer, calibration = self.scorer, self.calibration
        if scorer is None or place == 0:
            before = state()
            scorer = StateScorer(before, k)
            calibration = calibration.faded(math.exp(-EVERY / before.weight), SCORED)
        return Calibrator(calibration.entered(scorer.scores(V, place), scorer.sigma2), scorer)

    @classmethod
    def merged(cls, calibrators: Sequence["Calibrator"]) -> "Calibrator":
        """The past scores of several streams together."""
        return cls(Calibration(np.sum([each.calibration.weights for each in calibrators], axis=0)))
