"""Streaming PCA as a scikit-learn estimator."""

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from streampca.estimator import dask_arrays, limits
from streampca.estimator.online import OnlineLearner
from streampca.pca.arrays import Array
from streampca.pca.free_gauge import FreeGauge, PowerStep
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import merge as merge_states
from streampca.pca.model import Model
from streampca.pca.pending import UnitGauge
from streampca.pca.state import State


class ImplicitKrasulina(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal components of a stream, learned in one pass by the implicit Krasulina update.

    Vectors come in pieces of any size by `partial_fit`; the result does not depend, not by a bit, on how they were
    cut into pieces. Memory is O(d·K), whatever the length of the stream; arrays on disk (`np.memmap`) are read slab by
    slab. Of a Dask array `fit` learns every row chunk by itself, side by side, and merges them, `partial_fit` takes
    one chunk after the other, and `transform` and `inverse_transform` answer with a Dask array.

    Parameters
    ----------
    n_components : number k of components; None: as many as features.
    oversampling : columns that are learned beside the k, for accuracy (10 brings one pass within ~0.01 % of batch PCA).
    half_life : messages after which a message counts half; None: all count the same, for ever.
    center : take the running mean off.
    gauge : "unit" needs no step size (it is one over the number of messages); "free" is the paper's own algorithm.
    step : only for the free gauge: step sizes η_t; None: `PowerStep()`.
    warm_up : only for the unit gauge: messages that the first factor is made of; None: max(200, 2 (k + oversampling)).
    dtype : "float64" or "float32", of the factor and the work on it.
    random_state : only for the free gauge: seed of the random orthonormal factor that it starts from.

    Attributes
    ----------
    components_ (k, d), orthonormal rows by falling variance, the largest entry of each positive; explained_variance_
    (k,), with ddof 0 (that is n, not n − 1, in the denominator: forgetting leaves no n); explained_variance_ratio_;
    singular_values_; mean_ (d,); noise_variance_; n_components_; n_features_in_; n_samples_seen_; model_, all of this
    as a frozen value that needs no scikit-learn.
    """

    online_: OnlineLearner[Any]

    def __init__(
        self,
        n_components: int | None = None,
        *,
        oversampling: int = 10,
        half_life: float | None = None,
        center: bool = True,
        gauge: Literal["unit", "free"] = "unit",
        step: PowerStep | None = None,
        warm_up: int | None = None,
        dtype: Literal["float64", "float32"] = "float64",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.oversampling = oversampling
        self.half_life = half_life
        self.center = center
        self.gauge = gauge
        self.step = step
        self.warm_up = warm_up
        self.dtype = dtype
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Forget everything and learn vectors (n, d) in one pass; of a Dask array every row chunk by itself.

        The latter is `merge` of one estimator for each chunk, which needs the unit gauge and no half-life.
        """
        if hasattr(self, "online_"):
            del self.online_
        return self._fit_chunks(X) if dask_arrays.is_dask(X) else self.partial_fit(X)

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn further vectors (n, d). Raises `ValueError` for such as cannot be learned, and learns none then."""
        online = copy(self.online_) if hasattr(self, "online_") else None
        for piece in dask_arrays.in_order(X):
            online = self._added(online, piece)
        if online is None:
            raise ValueError("the array has no rows")
        self.online_ = online
        return self

    def _added(self, online: OnlineLearner[Any] | None, piece: ArrayLike) -> OnlineLearner[Any]:
        """The stream after one more piece; None: its beginning."""
        V = validate_data(self, piece, dtype=[np.float64, np.float32], reset=online is None)
        if online is None:
            online = self._new_learner(V.shape[1])
            limits.refuse_small(V, online.gauge.config)
        limits.refuse_large(V, online.gauge.config)
        online.add(V)
        return online

    def _fit_chunks(self, X: Any) -> Self:
        if self.gauge != "unit" or self.half_life is not None:
            raise ValueError('chunks are merged only with gauge="unit" and no half_life: take partial_fit instead')
        parts = dask_arrays.side_by_side(X, lambda V: clone(self).fit(V))
        if not parts:
            raise ValueError("the array has no rows")
        self.online_, self.n_features_in_ = merge(parts).online_, X.shape[1]
        return self

    def transform(self, X: ArrayLike) -> Array:
        """Coordinates (n, k) of vectors (n, d) along the components."""
        check_is_fitted(self)
        if dask_arrays.is_dask(X):
            return dask_arrays.mapped(X, copy(self)._coordinates, self.n_components_)  # type: ignore[no-any-return]
        pieces = [self._coordinates(piece) for piece in dask_arrays.in_order(X)]
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def _coordinates(self, X: ArrayLike) -> Array:
        V = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        coordinates: Array = (V - self.mean_) @ self.components_.T
        return coordinates

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Vectors (n, d) with coordinates (n, k)."""
        check_is_fitted(self)
        if dask_arrays.is_dask(X):
            return dask_arrays.mapped(X, self.model_.reconstruct, self.n_features_in_)  # type: ignore[no-any-return]
        return self.model_.reconstruct(np.asarray(X, np.float64))

    @property
    def model_(self) -> Model:
        """Mean, axes and variances of everything seen, as a frozen value."""
        check_is_fitted(self)
        model: Model = self.online_.model
        return model

    @property
    def components_(self) -> Array:
        """Orthonormal rows (k, d), by falling variance."""
        return self.model_.components

    @property
    def explained_variance_(self) -> Array:
        """Variance along each component (k,), with ddof 0."""
        return self.model_.explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """Share of the total variance along each component (k,)."""
        return self.model_.explained_variance_ratio

    @property
    def singular_values_(self) -> Array:
        """Those of the (weighted) centred data matrix (k,)."""
        values: Array = np.sqrt(self.explained_variance_ * self.model_.weight)
        return values

    @property
    def mean_(self) -> Array:
        """The (weighted) mean (d,); zeros with center=False."""
        return self.model_.mean

    @property
    def noise_variance_(self) -> float:
        """Mean variance along the directions that are not among the components."""
        model = self.model_
        rest = model.dimensions - model.n_components
        return float(max(model.total_variance - model.explained_variance.sum(), 0.0) / rest) if rest else 0.0

    @property
    def n_components_(self) -> int:
        """k."""
        return self.model_.n_components

    @property
    def n_samples_seen_(self) -> int:
        """Vectors learned."""
        check_is_fitted(self)
        return int(self.online_.seen)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _new_learner(self, d: int) -> OnlineLearner[Any]:
        config = self._config(d)
        if self.gauge == "unit":
            return OnlineLearner(UnitGauge(config), 1.0 if self.half_life is None else 2.0 ** (-1.0 / self.half_life))
        random = check_random_state(self.random_state)
        C0 = np.linalg.qr(random.standard_normal((d, config.columns)))[0]
        return OnlineLearner(FreeGauge(config, C0, self.step or PowerStep()))

    def _config(self, d: int) -> LearningConfig:
        k = d if self.n_components is None else self.n_components
        if not 1 <= k <= d:
            raise ValueError(f"n_components={k} must be between 1 and the number of features, {d}")
        if self.oversampling < 0 or (self.warm_up is not None and self.warm_up < 0):
            raise ValueError("oversampling and warm_up cannot be negative")
        if self.half_life is not None and not self.half_life > 0:
            raise ValueError(f"half_life={self.half_life} must be a positive number of messages")
        if self.gauge not in ("unit", "free"):
            raise ValueError(f'gauge={self.gauge!r} must be "unit" or "free"')
        if self.gauge == "free" and (self.half_life is not None or self.warm_up):
            raise ValueError('half_life and warm_up need gauge="unit": the free gauge forgets as its steps say')
        if np.dtype(self.dtype) not in (np.dtype("float64"), np.dtype("float32")):
            raise ValueError(f'dtype={self.dtype!r} must be "float64" or "float32"')
        return LearningConfig(d, k, self.oversampling, self.center, np.dtype(self.dtype).name, self.warm_up)


def merge(parts: Sequence[ImplicitKrasulina]) -> ImplicitKrasulina:
    """The estimator that has learned the streams of all `parts`: fitted, alike in their parameters, in the unit gauge.

    It goes on learning by `partial_fit`. The order of the parts matters to rounding only. Raises `ValueError` for
    parts that do not go together.
    """
    if not parts:
        raise ValueError("nothing to merge")
    for part in parts:
        check_is_fitted(part)
    first, retention = parts[0].online_.gauge, parts[0].online_.retention
    alike = all(part.online_.gauge == first and part.online_.retention == retention for part in parts)
    if not (alike and isinstance(first, UnitGauge)):
        raise ValueError('only estimators with the same parameters and features, and gauge="unit", can be merged')
    state: State = merge_states([part.online_.summary() for part in parts], first.config.columns)
    merged: ImplicitKrasulina = clone(parts[0])
    merged.n_features_in_ = parts[0].n_features_in_
    if hasattr(parts[0], "feature_names_in_"):
        merged.feature_names_in_ = parts[0].feature_names_in_
    merged.online_ = OnlineLearner(first, retention)
    merged.online_.resume(state, sum(part.n_samples_seen_ for part in parts))
    return merged
