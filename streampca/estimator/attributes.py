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

    parameters: dict[str, Any]  # the estimator's parameters that decide what is learned: `checks.learning_parameters`
    config: FoldConfig
    fold: Fold
    past_scores: PastScoresBuilder

    def learn(self, V: Array) -> "OnlineFit":
        """Return the fit after the rows V (n, d); this fit does not change."""
        past_scores = copy(self.past_scores)
        end = self.fold.stats.learned + len(V)
        fold, _ = self.fold.take(batch_of_rows(V, end), self.config, past_scores.before_block)
        return replace(self, fold=fold, past_scores=past_scores)

    @property
    @one_thread
    def state(self) -> State:
        """The state after all rows, the pending ones included."""
        return MergedFold.alone(self.fold, self.config).state

    @cached_property
    @one_thread
    def model(self) -> Model:
        """The model with as many components as the parameter `n_components` asks for."""
        state = self.state
        n_components = self.parameters["n_components"]
        k = number_of_components(state, self.past_scores.components)
        if n_components in (None, "mle"):
            k = min(k, state.count)
        if n_components == "mle":
            from sklearn.decomposition._pca import _infer_dimension  # not at the top: importing it takes a second

            explained_variance = model_of(state, k).explained_variance
            k = max(int(_infer_dimension(explained_variance, state.count)), 1)
        return model_of(state, k)

    @cached_property
    def unbiased(self) -> Model:
        """The model whose variances are divided by w − 1 instead of w, as scikit-learn divides by n − 1.

        Up to a weight w of 1 they are 0.
        """
        model = self.model
        factor = model.weight / (model.weight - 1) if model.weight > 1 else 0.0
        return replace(
            model,
            explained_variance=model.explained_variance * factor,
            total_variance=model.total_variance * factor,
        )


class FittedAttributes:
    """Properties of an estimator that has learned something."""

    online_: OnlineFit

    @property
    def _fitted(self) -> OnlineFit:
        check_is_fitted(self)
        return self.online_

    @property
    def model_(self) -> Model:
        """Mean, components and variances of all rows, as the frozen value that `streampca fit` writes."""
        return self._fitted.model

    @property
    def components_(self) -> Array:
        """Principal axes (n_components, n_features), which are orthonormal rows by falling variance.

        The largest entry of each row is positive. The dtype is that of the factor: float32 for float32 rows.
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
        """Standard deviation of each feature, as `StandardScaler` has it: 1 for a constant feature.

        None unless standardize=True.
        """
        return None if self.model_.scale is None else self._units

    @property
    def noise_variance_(self) -> float:
        """Mean variance, with ddof=1, along the directions orthogonal to the components.

        0 if the components span all directions in which the rows can vary.
        """
        direction_count = min(self.n_samples_seen_, self.model_.seen_dimensions)
        if self.n_components_ >= direction_count:
            return 0.0
        return self._fitted.unbiased.noise_variance

    def get_covariance(self) -> F64:
        """Return the covariance by probabilistic PCA, D⁻¹(Cᵀ(Λ − σ²)C + σ²)D⁻¹, (n_features, n_features)."""
        return self._compute_covariance(self._fitted.unbiased)

    @one_thread
    def _compute_covariance(self, model: Model) -> F64:
        """Return the covariance by probabilistic PCA with the variances of this model, (n_features, n_features)."""
        C = model.components * self._units
        noise = model.noise_variance
        along_components = (C.T * (model.explained_variance - noise)) @ C
        return np.asarray(along_components + noise * np.diag(self._units**2), np.float64)

    @one_thread
    def get_precision(self) -> F64:
        """Return the inverse of `get_covariance()`, of shape (n_features, n_features)."""
        # The covariance is inverted without units: in the units of the features, the inverse could lose all digits.
        units = np.outer(self._units, self._units)
        return np.asarray(np.linalg.inv(self.get_covariance() / units) / units, np.float64)

    @property
    def _units(self) -> F64:
        """The diagonal of D⁻¹: standard deviations of the features, or ones unless standardize=True."""
        return 1.0 / self.model_.D

    @property
    def var_(self) -> F64:
        """Variance of each feature, with ddof=0 as in `IncrementalPCA`.

        Where the state keeps no variances of features, they are those of probabilistic PCA.
        """
        state = self._fitted.state
        is_kept = state.covariance is not None or state.variances is not None
        return state.entry_variances if is_kept else self._compute_covariance(self.model_).diagonal()

    @property
    def n_components_(self) -> int:
        """Number of components of the model."""
        return self.model_.n_components

    @property
    def n_samples_seen_(self) -> int:
        """Number of rows that were learned."""
        return self._fitted.fold.stats.learned

    n_samples_ = n_samples_seen_  # the name in `PCA`

    @property
    def n_clipped_(self) -> int:
        """Number of learned rows that were so far from the mean that they were clipped.

        Clipping bounds the influence of a single row.
        """
        return self._fitted.state.clipped
