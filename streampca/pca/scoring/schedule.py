"""The past scores of one stream: all messages but the first are scored in blocks of 256, before these are learned.

Blocks are cut on the messages' numbers alone, so no bit depends on how many arrive together.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from streampca.pca.arrays import Array
from streampca.pca.axes import leading_model
from streampca.pca.model import BLOCK, Model
from streampca.pca.scoring.calibration import Calibration
from streampca.pca.scoring.scores import Scores, score
from streampca.pca.state import State

SCORED = 256  # messages in a row


def parts(V: Array, seen: int, first: int) -> Iterator[tuple[Array, int]]:
    """Cuts messages (n, d), which follow `seen` others, into parts of blocks, each with an index.

    The index is that of the part's first message in its block of 256, or -1. The first block, of `first`
    messages, and the one after it are not scored.
    """
    start = first + SCORED
    while len(V):
        index = (seen - start) % SCORED if seen >= start else -1
        end = start - seen if index < 0 else SCORED - index
        yield V[:end], index
        V, seen = V[end:], seen + end


@dataclass(frozen=True, eq=False)
class Calibrator:
    """The past scores of a stream."""

    calibration: Calibration = field(default_factory=Calibration.empty)
    model: Model | None = None  # by which the current 256 messages are scored

    def scored(self, state: State, k: int, V: Array, index: int) -> "Calibrator":
        """With the scores of messages (n, d), the first of which is the one with this index among 256.

        In the `state` they are not learned yet. Older scores keep e^(−n/w) of their weight,
        with n the messages since then and w the state's weight.
        """
        model, calibration = self.model, self.calibration
        if model is None or index == 0:
            model = leading_model(state, k)
            calibration = calibration.faded(math.exp(-SCORED / state.weight), SCORED)
        return Calibrator(calibration.entered(_in_place(model, V, index % BLOCK), model.noise_variance), model)

    @classmethod
    def merged(cls, calibrators: Sequence["Calibrator"]) -> "Calibrator":
        """The past scores of several streams together."""
        return cls(Calibration(np.sum([each.calibration.weights for each in calibrators], axis=0)))


def _in_place(model: Model, V: Array, start: int) -> Scores:
    """The scores of rows V (n, d), computed as the rows of a block from `start` on: so no other row changes a bit."""
    end = start + len(V)
    rows = np.zeros((-(-end // BLOCK) * BLOCK, V.shape[1]))
    rows[start:end] = V
    return Scores(*(values[start:end] for values in score(model, rows)))
