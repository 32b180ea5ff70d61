"""The past scores of a stream do not depend on how its messages arrive, and their p-values are uniform."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.fold.past_scores import PastScoresBuilder
from streampca.pca.learning import LearningConfig, Messages, learn_whole_blocks
from streampca.pca.scoring import Calibration
from streampca.pca.state import State
from tests.pca.streams import gaussian

CONFIG = LearningConfig(6, 2, oversampling=1, warm_up=30)
X = gaussian(3, 12_000, np.array([5, 3, 1, 1, 0.5, 0.2]), offset=2.0)


def calibrated(sizes: list[int]) -> Calibration:
    past_scores, state, pending, seen = PastScoresBuilder(2), State.empty(6), Messages(X[:0], np.zeros(0)), 0
    for size in sizes:
        new = Messages(X[seen : seen + size], np.ones(size))
        state, pending, _ = learn_whole_blocks(CONFIG, state, pending, new, past_scores.before_block)
        seen += size
    return past_scores.calibration


@given(st.lists(st.integers(0, 8000), max_size=6))
@settings(max_examples=8, deadline=None)
def test_no_bit_depends_on_how_messages_arrive(cuts: list[int]) -> None:
    sizes = [int(size) for size in np.diff([0, *sorted(cuts), 8000])]
    assert np.array_equal(calibrated(sizes).weights, calibrated([8000]).weights)
