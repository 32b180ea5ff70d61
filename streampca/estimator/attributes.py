"""The fitted attributes of the estimator, named as in scikit-learn's `PCA`."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import MergedFold
from streampca.fold.past_scores import PastScoresBuilder, number_of_components
from streampca.formats.batch import batch_of_rows
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.pca.state import State


@dataclass(frozen=True, eq=False)
class OnlineFit:
    """The fold of an estimator, and its past scores."""

    config: FoldConfig
    fold: Fold
    past_scores: PastScoresBuilder

    def followed_by(self, V: Array) -> "OnlineFit":
        """The fit after learning the rows V (n, d)."""
        past_scores, end = copy(self.past_scores), self.fold.stats.learned + len(V)
        fold, _ = self.fold.take(batch_of_rows(V, end), self.config, past_scores.before_block)
        return replace(self, fold=fold, past_scores=past_scores)

    @property
    def state(self) -> State:
        """The state after all messages, including the pending ones."""
        return MergedFold.alone(self.fold, self.config).state

    @cached_property
    def model(self) -> Model:
        state = self.state
        return model_of(state, number_of_components(state, self.past_scores.components))


class FittedAttributes:
    """Properties of an estimator that has learned something."""

    online_: OnlineFit

    @property
    def _fitted(self) -> OnlineFit:
        check_is_fitted(self)
        return self.online_

    @property
    def model_(self) -> Model:
        """Mean, components and variances of all messages, as a frozen value."""
        return self._fitted.model

    @property
    def components_(self) -> Array:
        """Principal axes (n_components, n_features): orthonormal rows by falling variance, largest entries positive."""
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
        return np.asarray(np.sqrt(self.explained_variance_ * self.model_.weight))

    @property
    def mean_(self) -> Array:
        """Weighted mean; zeros with center=False."""
        return self.model_.mean

    @property
    def scale_(self) -> F64 | None:
        """Standard deviation of each feature, 1 for a constant one, as of `StandardScaler`; None unless standardize."""
        scale = self.model_.scale
        return None if scale is None else 1.0 / scale

    @property
    def noise_variance_(self) -> float:
        """Mean variance along the directions orthogonal to the components, at least the variance of rounding."""
        return self.model_.noise_variance

    def get_covariance(self) -> F64:
        """The data's covariance by probabilistic PCA, of shape (n_features, n_features): D⁻¹(Cᵀ(Λ − σ²)C + σ²)D⁻¹."""
        C, noise = self.components_ * self._units, self.noise_variance_
        return np.asarray((C.T * (self.explained_variance_ - noise)) @ C + noise * np.diag(self._units**2), np.float64)

    def get_precision(self) -> F64:
        """The inverse of that covariance, of shape (n_features, n_features)."""
        units = np.outer(self._units, self._units)  # without them it is well conditioned
        return np.asarray(np.linalg.inv(self.get_covariance() / units) / units, np.float64)

    @property
    def _units(self) -> F64:
        """The diagonal of D⁻¹, in the data's units; ones unless standardize."""
        return np.ones(self.model_.dimensions) if self.scale_ is None else self.scale_

    @property
    def var_(self) -> F64:
        """Variance of each feature, ddof=0; where it is not kept, as `get_covariance` has it."""
        state = self._fitted.state
        is_kept = state.covariance is not None or state.variances is not None
        return state.entry_variances if is_kept else self.get_covariance().diagonal()

    @property
    def n_components_(self) -> int:
        return self.model_.n_components

    @property
    def n_samples_seen_(self) -> int:
        """Number of messages learned."""
        return self._fitted.fold.stats.learned

    @property
    def n_clipped_(self) -> int:
        """Number of these that were clipped, since they are far from the mean: their influence is bounded."""
        return self._fitted.state.clipped
