"""The judge of what may be learned."""

import numpy as np
import pytest

from streampca.fold.judge import Judge
from streampca.pca.learning import LearningConfig


@pytest.mark.parametrize(
    ("vector", "reason"),
    [([np.inf] * 4, "not_finite"), ([1e300] * 4, "too_large"), ([np.nan, np.nan, np.nan, 1.0], "too_few_observed")],
)
def test_the_judge_says_what_is_wrong_with_a_vector(vector: list[float], reason: str) -> None:
    judge = Judge.of(LearningConfig(4, 1, impute=True))
    V = np.array([[1.0, 2, 3, 4], vector, [1, np.nan, 3, 4]])
    assert judge.good(V).tolist() == [True, False, True]
    assert judge.reason(V[1])[0] == reason
    assert judge.first_bad(V[:1]) is None
    assert judge.first_bad(V) == (1, *judge.reason(V[1]))
    checked = judge.checked(V, np.arange(3), np.ones(3, np.int64), [])
    assert [(reject.index, reject.reason) for reject in checked.rejects] == [(1, reason)]
    assert np.array_equal(checked.vectors, V[[0, 2]], equal_nan=True)
