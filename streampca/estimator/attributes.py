"""The fitted attributes of the estimator, named as in scikit-learn's `PCA`."""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.estimator.threads import one_thread
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import MergedFold
from streampca.fold.past_scores import PastScoresBuilder, number_of_components
from streampca.formats.record import batch_of_rows
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.pca.state import State


@dataclass(frozen=True, eq=False)
class OnlineFit:
    """The fold of an estimator, and its past scores."""

    parameters: dict[str, Any]  # of the estimator that shape the model
    config: FoldConfig
    fold: Fold
    past_scores: PastScoresBuilder

    def followed_by(self, V: Array) -> "OnlineFit":
        """The fit after learning the rows V (n, d)."""
        past_scores, end = copy(self.past_scores), self.fold.stats.learned + len(V)
        fold, _ = self.fold.take(batch_of_rows(V, end), self.config, past_scores.before_block)
        return replace(self, fold=fold, past_scores=past_scores)

    @property
    @one_thread
    def state(self) -> State:
        """The state after all messages, including the pending ones."""
        return MergedFold.alone(self.fold, self.config).state

    @cached_property
    @one_thread
    def model(self) -> Model:
        state, n_components = self.state, self.parameters["n_components"]
        k = number_of_components(state, self.past_scores.components)
        if n_components in (None, "mle"):
            k = min(k, state.count)
        if n_components == "mle":
            from sklearn.decomposition._pca import _infer_dimension  # of PCA("mle"); importing it takes a second

            k = max(int(_infer_dimension(model_of(state, k).explained_variance, state.count)), 1)
        return model_of(state, k)

    @cached_property
    def unbiased(self) -> Model:
        """The model with w − 1 in the denominators of variances, as scikit-learn has n − 1; 0 where w ≤ 1."""
        model = self.model
        factor = model.weight / (model.weight - 1) if model.weight > 1 else 0.0
        scaled = {name: getattr(model, name) * factor for name in ("explained_variance", "total_variance")}
        return replace(model, **scaled)


class FittedAttributes:
    """Properties of an estimator that has learned something."""

    online_: OnlineFit

    @property
    def _fitted(self) -> OnlineFit:
        check_is_fitted(self)
        return self.online_

    @property
    def model_(self) -> Model:
        """Mean, components and variances of all messages, as a frozen value: what `streampca fit` writes."""
        return self._fitted.model

    @property
    def components_(self) -> Array:
        """Principal axes (n_components, n_features): orthonormal rows by falling variance, largest entries positive.

        In the precision of the factor: float32 for float32 rows.
        """
        return self.model_.components.astype(self._fitted.config.learning.dtype, copy=False)

    @property
    def explained_variance_(self) -> Array:
        """Variance along each component, with ddof=1."""
        return self._fitted.unbiased.explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """Share of the total variance along each component."""
        return self.model_.explained_variance_ratio

    @property
    def singular_values_(self) -> Array:
        """Singular values of the weighted, centred data."""
        return np.asarray(np.sqrt(self.model_.explained_variance * self.model_.weight))

    @property
    def mean_(self) -> Array:
        """Weighted mean; zeros with center=False."""
        return self.model_.mean

    @property
    def scale_(self) -> F64 | None:
        """Standard deviation of each feature, 1 for a constant one, as of `StandardScaler`; None unless standardize."""
        return None if self.model_.scale is None else self._units

    @property
    def noise_variance_(self) -> float:
        """Mean variance, ddof=1, along the directions orthogonal to the components; 0 if rows vary along no other."""
        there_are = min(self.n_samples_seen_, self.model_.seen_dimensions)
        return self._fitted.unbiased.noise_variance if self.n_components_ < there_are else 0.0

    def get_covariance(self) -> F64:
        """The data's covariance by probabilistic PCA, of shape (n_features, n_features): D⁻¹(Cᵀ(Λ − σ²)C + σ²)D⁻¹."""
        return self._covariance(self._fitted.unbiased)

    @one_thread
    def _covariance(self, model: Model) -> F64:
        C, noise = model.components * self._units, model.noise_variance
        return np.asarray((C.T * (model.explained_variance - noise)) @ C + noise * np.diag(self._units**2), np.float64)

    @one_thread
    def get_precision(self) -> F64:
        """The inverse of that covariance, of shape (n_features, n_features)."""
        units = np.outer(self._units, self._units)  # without them it is well conditioned
        return np.asarray(np.linalg.inv(self.get_covariance() / units) / units, np.float64)

    @property
    def _units(self) -> F64:
        """The diagonal of D⁻¹, in the data's units; ones unless standardize."""
        return 1.0 / self.model_.D

    @property
    def var_(self) -> F64:
        """Variance of each feature, ddof=0 as of `IncrementalPCA`; where it is not kept, by probabilistic PCA."""
        state = self._fitted.state
        is_kept = state.covariance is not None or state.variances is not None
        return state.entry_variances if is_kept else self._covariance(self.model_).diagonal()

    @property
    def n_components_(self) -> int:
        return self.model_.n_components

    @property
    def n_samples_seen_(self) -> int:
        """Number of messages learned."""
        return self._fitted.fold.stats.learned

    n_samples_ = n_samples_seen_  # PCA's name for it

    @property
    def n_clipped_(self) -> int:
        """Number of these that were clipped, since they are far from the mean: their influence is bounded."""
        return self._fitted.state.clipped
