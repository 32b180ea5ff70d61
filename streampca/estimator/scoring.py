"""How likely and how unusual rows are, by the estimator's model."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data

from streampca.estimator import dask_arrays
from streampca.estimator.online import OnlineLearner
from streampca.estimator.parameters import finite_or_gaps
from streampca.pca import anomaly
from streampca.pca.arrays import F64
from streampca.pca.model import Model


class Scoring:
    """Methods of an estimator that score rows."""

    online_: OnlineLearner[Any]
    model_: Model

    def score_samples(self, X: ArrayLike) -> F64:
        """Log-likelihood of each row by probabilistic PCA, as of scikit-learn's `PCA`, of shape (n_samples,).

        The lower, the more unusual. It is -(T2 + SPE / noise_variance_) / 2 and a constant, see docs/mathematics.md.

        Parameters
        ----------
        X : array-like or Dask array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        return np.concatenate([anomaly.log_likelihood(self.model_, V) for V in self._rows(X)])

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Mean log-likelihood of the rows.

        Parameters
        ----------
        X : array-like or Dask array of shape (n_samples, n_features)
        y : ignored
        """
        return float(self.score_samples(X).mean())

    def p_values(self, X: ArrayLike) -> F64:
        """Share of the learned rows that were at least as unusual when they were new, of shape (n_samples,).

        One learned row in sixteen is compared with, each scored before it was learned; without any (fewer than some
        hundred rows learned) all are 1.

        Parameters
        ----------
        X : array-like or Dask array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        model, calibration = self.model_, self.online_.calibrator.calibration
        sigma2 = anomaly.noise_variance(model)
        return np.concatenate([calibration.p_values(anomaly.score(model, V), sigma2).score for V in self._rows(X)])

    def _rows(self, X: ArrayLike) -> list[F64]:
        pieces = dask_arrays.in_order(X)
        return [validate_data(self, piece, reset=False, **finite_or_gaps(self)) for piece in pieces]
