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
from streampca.fold.model_file import PublishedModel
from streampca.fold.past_scores import PastScoresBuilder, choose_number_of_components
from streampca.formats.record import batch_of_rows
from streampca.pca.arrays import F64, Array
from streampca.pca.axes import make_model
from streampca.pca.model import Model
from streampca.pca.state import State


@dataclass(frozen=True, eq=False)
class OnlineFit:
    """What an estimator has learned: its fold, and the past scores of its rows."""

    parameters: dict[str, Any]  # the estimator's parameters that decide what is learned: `checks.learning_parameters`
    config: FoldConfig
    fold: Fold
    past_scores: PastScoresBuilder
    loaded_model: PublishedModel | None = None
    """A model loaded from a file without a fold, until further rows are learned. The fold is estimated from it."""

    def refuse_worker_model(self) -> None:
        """Raise `ValueError` if this is a worker's model, whose file holds too little to continue learning.

        An estimator's file holds the fold. A file of `streampca fit` holds the covariance or all axes, from which a
        fold is well estimated. A worker's model has none of these.
        """
        is_worker_model = self.loaded_model is not None and self.loaded_model.covariance_or_axes is None
        if is_worker_model:
            raise ValueError(
                "the estimator was loaded from a worker's model, which holds no fold, so it cannot learn more rows: "
                "continue with `streampca fit --start-from`, which estimates one, or start again with `fit`"
            )

    def learn(self, V: Array) -> "OnlineFit":
        """Return a new fit that has also learned the rows V (n, d)."""
        # A shallow copy is enough: `score_block` replaces attributes, and changes no array in place.
        past_scores = copy(self.past_scores)
        next_position = self.fold.stats.learned + len(V)  # rows have no offsets, so the position counts them
        batch = batch_of_rows(V, end=next_position)
        fold, _ = self.fold.take(batch, self.config, before_block=past_scores.score_block)
        # A loaded model has not learned these rows, so the fold replaces it.
        return replace(self, fold=fold, past_scores=past_scores, loaded_model=None)

    @property
    def components_or_share(self) -> int | float:
        """How many components the model has: their number (int), or the share of the variance to explain (float)."""
        return self.past_scores.components_or_share

    @property
    @one_thread
    def state(self) -> State:
        """The state after all rows, the pending ones included."""
        return MergedFold.from_fold(self.fold, self.config).state

    @cached_property
    @one_thread
    def model(self) -> Model:
        """The model of all rows, with as many components as `n_components` asks for."""
        if self.loaded_model:
            return self.loaded_model.model
        state = self.state
        # For a share of the variance, `k` is how many components explain it. For None and "mle", `k` is all components.
        k = choose_number_of_components(state, self.components_or_share)
        n_components = self.parameters["n_components"]
        if n_components in (None, "mle"):
            k = min(k, state.count)  # as in scikit-learn: no more components than rows
        model = make_model(state, k)
        if n_components != "mle":
            return model
        from sklearn.decomposition._pca import _infer_dimension  # Minka's rule; importing it takes a second

        k_of_mle = max(int(_infer_dimension(model.explained_variance, state.count)), 1)
        return make_model(state, k_of_mle)

    @cached_property
    def unbiased_model(self) -> Model:
        """The model with variances divided by its weight − 1, as in scikit-learn.

        With a weight of at most 1, they are 0.
        """
        model = self.model
        factor = model.weight / (model.weight - 1) if model.weight > 1 else 0.0
        return replace(
            model,
            explained_variance=model.explained_variance * factor,
            total_variance=model.total_variance * factor,
        )


class FittedAttributes:
    """Properties of an estimator that has learned some rows."""

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

        The largest entry of each row is positive. The dtype is that in which rows are learned: float32 or float64.
        """
        return self.model_.components.astype(self._fitted.config.learning.dtype, copy=False)

    @property
    def explained_variance_(self) -> Array:
        """Variance along each component, with ddof=1."""
        return self._fitted.unbiased_model.explained_variance

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
        # `model_.scale` is 1/deviation. If the model has a scale, `_units` are the deviations.
        return None if self.model_.scale is None else self._units

    @property
    def noise_variance_(self) -> float:
        """Mean variance, with ddof=1, along the directions orthogonal to the components.

        0 if the components span all directions in which the rows can vary.
        """
        largest_rank = min(self.n_samples_seen_, self.model_.seen_dimensions)
        if self.n_components_ >= largest_rank:
            return 0.0
        return self._fitted.unbiased_model.noise_variance

    def get_covariance(self) -> F64:
        """Return the covariance of the features by probabilistic PCA, (n_features, n_features)."""
        return self._compute_covariance(self._fitted.unbiased_model)

    @one_thread
    def _compute_covariance(self, model: Model) -> F64:
        """Compute the covariance of the features by probabilistic PCA, with the variances of this model.

        The rows have the variances λ (k,) along the components A (k, d), and the variance σ² in every other direction.
        D⁻¹ (d, d) is diagonal and holds the unit of each feature. The covariance is

            (AD⁻¹)ᵀ · diag(λ − σ²) · AD⁻¹ + σ²D⁻²
        """
        components_in_units = model.components * self._units  # AD⁻¹
        noise_variance = model.noise_variance  # σ²
        variance_above_noise = model.explained_variance - noise_variance  # λ − σ²
        along_components = (components_in_units.T * variance_above_noise) @ components_in_units
        return np.asarray(along_components + noise_variance * np.diag(self._units**2), np.float64)

    @one_thread
    def get_precision(self) -> F64:
        """Return the inverse of `get_covariance()`, of shape (n_features, n_features)."""
        # With units of very different sizes, the inverse could lose all digits.
        products_of_units = np.outer(self._units, self._units)
        standardised = self.get_covariance() / products_of_units
        return np.asarray(np.linalg.inv(standardised) / products_of_units, np.float64)

    @property
    def _units(self) -> F64:
        """The unit of each feature, the diagonal of D⁻¹: its standard deviation with standardize=True, otherwise 1."""
        return 1.0 / self.model_.D

    @property
    def var_(self) -> F64:
        """Variance of each feature, with ddof=0 as in `IncrementalPCA`.

        If the state does not keep the variances of features, they are estimated by probabilistic PCA.
        """
        state = self._fitted.state
        keeps_variances = state.covariance is not None or state.variances is not None
        return state.entry_variances if keeps_variances else self._compute_covariance(self.model_).diagonal()

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
