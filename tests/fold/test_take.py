"""The step: how a stream with good and bad records is cut into batches changes no bit of its fold."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.fold.codec import Codec
from streampca.fold.decoded import batch_of_rows
from streampca.fold.fold import Fold
from streampca.fold.judge import Judge
from streampca.fold.record import PlainRecord
from streampca.pca.learning import LearningConfig
from tests.fold.streams import D, bits, fold_config, vectors

CONFIG = fold_config(half_life_messages=70.0)
CODEC = Codec("json", D, CONFIG.learning.largest_value)


def records(n: int, bad: frozenset[int]) -> list[PlainRecord]:
    """With offsets that leave gaps, and epochs."""
    values = [json.dumps(row).encode() for row in vectors(n).tolist()]
    return [
        PlainRecord(2 * i + 5, b"{" if i in bad else value, 1000 * i, leader_epoch=3) for i, value in enumerate(values)
    ]


@given(st.data(), st.frozensets(st.integers(0, 299), max_size=30))
@settings(max_examples=25, deadline=None)
def test_where_batches_are_cut_changes_no_bit(data: st.DataObject, bad: frozenset[int]) -> None:
    stream = records(300, bad)
    whole, losses = Fold.empty(CONFIG.learning).take(CODEC.batch_of(stream), CONFIG)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(1, 299), max_size=6, unique=True))), len(stream)]
    fold = Fold.empty(CONFIG.learning)
    for start, end in itertools.pairwise(cuts):
        fold, _ = fold.take(CODEC.batch_of(stream[start:end]), CONFIG)
    assert bits(fold, CONFIG) == bits(whole, CONFIG)
    assert (whole.stats.learned, sum(whole.stats.rejected.values())) == (300 - len(bad), len(bad))
    assert whole.position == stream[-1].offset + 1
    assert sum(len(part.residual) for part in losses) == whole.stats.with_loss


def test_a_batch_without_records_keeps_the_last_one() -> None:
    fold, _ = Fold.empty(CONFIG.learning).take(CODEC.batch_of(records(9, frozenset())), CONFIG)
    after, _ = fold.take(batch_of_rows(np.zeros((0, D)), fold.position + 7), CONFIG)
    assert (after.position, after.last) == (fold.position + 7, fold.last)


@pytest.mark.parametrize(
    ("vector", "reason"),
    [([np.inf] * 4, "not_finite"), ([1e300] * 4, "too_large"), ([np.nan, np.nan, np.nan, 1.0], "too_few_observed")],
)
def test_the_judge_says_what_is_wrong_with_a_vector(vector: list[float], reason: str) -> None:
    judge = Judge.of(LearningConfig(4, 1, impute=True))
    V = np.array([[1.0, 2, 3, 4], vector, [1, np.nan, 3, 4]])
    assert judge.good(V).tolist() == [True, False, True]
    assert judge.reason(V[1])[0] == reason
    checked = judge.checked(V, np.arange(3), np.ones(3, np.int64), [])
    assert [(reject.place, reject.reason) for reject in checked.rejects] == [(1, reason)]
    assert np.array_equal(checked.vectors, V[[0, 2]], equal_nan=True)
