"""p-values are the share of past scores that are as high, whichever models they are by."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.pca.arrays import F64
from streampca.pca.past_scores import BINS, WINDOW, PastScores
from streampca.pca.projection import Scores
from tests.pca.streams import batch_pca, gaussian

K, SPECTRUM = 3, np.array([5, 4, 3, 1, 1, 0.7, 0.5])


def scores_of(values: F64) -> Scores:
    return Scores(values, values, values)


positive = st.floats(1e-9, 1e18)


@given(st.lists(positive, min_size=1, max_size=40), st.lists(positive, max_size=40))
def test_p_is_the_share_of_past_scores_that_are_at_least_as_high(asked: list[float], past: list[float]) -> None:
    """To the width of a bin, 2.2 %."""
    past_scores = PastScores.empty().with_scores(scores_of(np.array(past)))
    width, weight = 2 ** (1 / 32) * (1 + 1e-9), 1 + len(past)
    for value, p in zip(asked, past_scores.p_values(scores_of(np.array(asked))).score, strict=True):
        fewest, most = (sum(score * slack >= value for score in past) for slack in (1 / width, width))
        assert (1 + fewest) / weight <= p + 1e-12
        assert p <= (1 + most) / weight + 1e-12


def test_without_past_scores_every_p_value_is_1() -> None:
    assert PastScores.empty().p_values(scores_of(np.array([0.0, 1e300, np.inf]))).score.tolist() == [1, 1, 1]


def test_p_values_of_a_gaussian_stream_are_uniform() -> None:
    X = gaussian(3, 20_000, SPECTRUM)
    model = batch_pca(X[:5000], K)
    past_scores = PastScores.empty()
    for i in range(5000, 15_000, 100):
        past_scores = past_scores.with_scores(model.project(X[i : i + 100]).relative_scores)
    for p in replace(model.project(X[15_000:]), past_scores=past_scores).p_values or ():
        for level in (0.5, 0.1, 0.05, 0.01):
            assert np.mean(p <= level) == pytest.approx(level, abs=4 * np.sqrt(1.5 * level / 5000))


def test_old_scores_are_forgotten() -> None:
    old = PastScores.empty().with_scores(scores_of(np.full(1000, 100.0)))
    assert old.with_scores(scores_of(np.ones(10)), kept=0.0).weight == 10
    assert old.with_scores(scores_of(np.ones(10)), kept=0.5).weight == pytest.approx(510, rel=1e-3)
    for _ in range(10):
        old = old.with_scores(scores_of(np.ones(WINDOW)))
    assert old.weight < 2 * WINDOW
    assert old.p_values(scores_of(np.array([50.0]))).score[0] < 2 / WINDOW


def test_scores_do_not_depend_on_the_unit_of_the_data() -> None:
    """A version of a stream in other units gives the same p to the same vectors."""
    model = batch_pca(gaussian(0, 300, SPECTRUM), K)
    tenfold = replace(model, explained_variance=10 * model.explained_variance, total_variance=10 * model.total_variance)
    Y = gaussian(0, 50, SPECTRUM)
    further = model.mean + np.sqrt(10) * (Y - model.mean)
    np.testing.assert_allclose(tenfold.project(further).relative_scores, model.project(Y).relative_scores, rtol=1e-9)


D, AXES = 300, 10


@pytest.mark.parametrize("deviation", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("messages", [200, 1000, 8000])
def test_new_messages_score_as_expected(messages: int, deviation: float) -> None:
    """However few messages the model has learned, for noise beside five directions that are like it, or stronger.

    Learned messages have larger T²: the axes fit them.
    """
    X = gaussian(1, messages + 2000, np.append(np.full(AXES // 2, deviation), np.ones(D - AXES // 2)), offset=3.0)
    model = batch_pca(X[:messages], AXES)
    learned, new = (np.mean(model.project(part).relative_scores, axis=1) for part in (X[:messages], X[messages:]))
    np.testing.assert_allclose(new, 1, rtol=0.12 if messages < D else 0.05)
    assert learned[0] > (1.3 if messages < 8000 else 1.05)


@given(st.lists(st.floats(0, 1e300), max_size=20))
def test_past_scores_survive_a_round_trip_through_a_table(past: list[float]) -> None:
    past_scores = PastScores.empty().with_scores(scores_of(np.array(past)))
    assert np.array_equal(PastScores.from_table(past_scores.table()).weights, past_scores.weights)


@pytest.mark.parametrize(
    "table",
    [
        np.zeros(3),
        np.zeros((1, 2)),
        np.array([[0, 0, 0.0]]),
        np.array([[0, 0, -1.0]]),
        np.array([[0, 0, np.nan]]),
        np.array([[3, 0, 1.0]]),
        np.array([[-1, 0, 1.0]]),
        np.array([[0, BINS, 1.0]]),
        np.array([[0, 0.5, 1.0]]),
        np.array([[0, 1e300, 1.0]]),
        np.array([[0, 1, 1.0], [0, 1, 1.0]]),
        np.array([[0, 1, 1.0]], np.float32),
        np.array([["a", "b", "c"]]),
    ],
)
def test_a_table_that_no_histogram_gives_is_refused(table: F64) -> None:
    with pytest.raises(ValueError, match=r"rows of a histogram|out of range"):
        PastScores.from_table(table)
