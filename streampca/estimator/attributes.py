"""The fitted attributes of the estimator, named as in scikit-learn's `PCA`."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.estimator.online import OnlineLearner
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Model


class FittedAttributes:
    """Properties of an estimator that has learned something, read from its learner."""

    online_: OnlineLearner

    @property
    def model_(self) -> Model:
        """Mean, components and variances of all messages, as a frozen value."""
        check_is_fitted(self)
        return self.online_.model

    @property
    def components_(self) -> Array:
        """Principal axes, of shape (n_components, n_features): orthonormal rows by falling variance.

        The largest entry of each row is positive.
        """
        return self.model_.components

    @property
    def explained_variance_(self) -> Array:
        """Variance along each component, with ddof=0: forgetting leaves no n to subtract 1 from."""
        return self.model_.explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """Share of the total variance along each component."""
        return self.model_.explained_variance_ratio

    @property
    def singular_values_(self) -> Array:
        """Singular values of the weighted, centred data."""
        values: Array = np.sqrt(self.explained_variance_ * self.model_.weight)
        return values

    @property
    def mean_(self) -> Array:
        """Weighted mean; zeros with center=False."""
        return self.model_.mean

    @property
    def noise_variance_(self) -> float:
        """Mean variance along the directions orthogonal to the components."""
        model = self.model_
        rest = model.dimensions - model.n_components
        return float(max(model.total_variance - model.explained_variance.sum(), 0.0) / rest) if rest else 0.0

    def get_covariance(self) -> F64:
        """The covariance by probabilistic PCA, of shape (n_features, n_features): Cᵀ(Λ − σ²)C + σ²."""
        C, noise = self.components_, self.noise_variance_
        covariance: F64 = (C.T * (self.explained_variance_ - noise)) @ C + noise * np.eye(C.shape[1])
        return covariance

    def get_precision(self) -> F64:
        """The inverse of that covariance, of shape (n_features, n_features)."""
        return np.asarray(np.linalg.inv(self.get_covariance()), np.float64)

    @property
    def var_(self) -> F64:
        """Variance of each feature, ddof=0; where no covariance is kept, as `get_covariance` has it."""
        check_is_fitted(self)
        if (covariance := self.online_.state.covariance) is None:
            return self.get_covariance().diagonal()
        return covariance[np.cumsum(np.arange(1, self.model_.dimensions + 1)) - 1]

    @property
    def n_components_(self) -> int:
        """Number of components."""
        return self.model_.n_components

    @property
    def n_samples_seen_(self) -> int:
        """Number of messages learned."""
        check_is_fitted(self)
        return int(self.online_.seen)
