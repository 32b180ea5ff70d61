"""The past scores of a stream do not depend on how its messages arrive."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.fold.events import batch_of_rows
from streampca.fold.fold import Fold
from streampca.fold.past_scores import PastScoresBuilder
from streampca.pca.arrays import F64
from tests.fold.streams import fold_config, vectors

CONFIG, X = fold_config(), vectors(8000, seed=3)


def weights(cuts: list[int]) -> F64:
    past_scores, fold = PastScoresBuilder(2), Fold.empty(CONFIG.learning)
    for start, end in pairwise([0, *sorted(cuts), len(X)]):
        fold, _ = fold.take(batch_of_rows(X[start:end], end), CONFIG, past_scores.before_block)
    return past_scores.calibration.weights


@given(st.lists(st.integers(0, len(X)), max_size=6))
@settings(max_examples=8, deadline=None)
def test_no_bit_depends_on_how_messages_arrive(cuts: list[int]) -> None:
    assert np.array_equal(weights(cuts), weights([]))
    assert weights([]).sum() > 0
