"""Rivals of our score: each learns messages X (n, d) of bytes, and returns a score, larger for more unusual messages.

- Isolation forest (Liu, Ting & Zhou 2008): scikit-learn's, with its defaults.
- ECOD (Li, Zhao, Hu, Botta, Ionescu & Chen 2022): how far out each entry is among the learned ones, entry by entry.
- Half-space trees (Tan, Ting & Liu 2011): river's, with the article's 25 trees.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest

from experiments.datasets import Pixels
from streampca.pca.arrays import F64

Score = Callable[[Pixels], F64]
_WINDOW = 250  # messages of a window of half-space trees, by default


def isolation_forest(X: Pixels) -> Score:
    """scikit-learn's, learned from X."""
    forest = IsolationForest(random_state=0).fit(X)
    return lambda Z: -forest.score_samples(Z)


def ecod(X: Pixels) -> Score:
    """The largest of three sums of −log tail probabilities: of left tails, of right tails, of the longer tails.

    A message counts among those that are at least as far out, so no probability is 0.
    """
    ordered, n = np.sort(X, axis=0), len(X)
    left_is_longer = [np.mean((column - column.mean()) ** 3) < 0 for column in ordered.T.astype(np.float64)]

    def score(Z: Pixels) -> F64:
        sums = np.zeros((3, len(Z)))
        for column, values, left_first in zip(ordered.T, Z.T, left_is_longer, strict=True):
            left = -np.log((1 + np.searchsorted(column, values, "right")) / (n + 1))
            right = -np.log((1 + n - np.searchsorted(column, values, "left")) / (n + 1))
            sums += left, right, left if left_first else right
        return np.asarray(sums.max(axis=0))

    return score


def half_space_trees(X: Pixels) -> Score:
    """river's. They know no message before the last whole window, so only two windows of X are learned."""
    from river.anomaly import HalfSpaceTrees  # takes seconds

    low, high = X.min(axis=0), X.max(axis=0)
    span = np.maximum(high - low, 1)
    trees: Any = HalfSpaceTrees(n_trees=25, window_size=_WINDOW, seed=0)

    def vectors(Z: Pixels) -> list[dict[int, float]]:
        return [dict(enumerate(row)) for row in ((Z - low.astype(np.float64)) / span).tolist()]

    for vector in vectors(X[-2 * _WINDOW :]):
        trees.learn_one(vector)
    return lambda Z: np.array([trees.score_one(vector) for vector in vectors(Z)])


DETECTORS: dict[str, Callable[[Pixels], Score]] = {
    "isolation forest": isolation_forest,
    "ECOD": ecod,
    "half-space trees": half_space_trees,
}
