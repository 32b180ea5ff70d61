"""`ImplicitKrasulina`, streaming PCA as a scikit-learn estimator."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from streampca.estimator import checks
from streampca.estimator.attributes import FittedAttributes
from streampca.estimator.online import OnlineLearner
from streampca.fold.fold import FoldConfig
from streampca.pca import scoring
from streampca.pca.arrays import F64, Array
from streampca.pca.merge import grouped, pooled
from streampca.pca.model import Model
from streampca.pca.scoring.schedule import Calibrator


class ImplicitKrasulina(FittedAttributes, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Incremental principal component analysis by the implicit Krasulina update, corrected by Rayleigh-Ritz.

    Learns the principal components in one pass over the data, in batches of any size (`partial_fit`), without a step
    size. The result does not depend on the sizes of the batches, not even in its last bit. Up to 768 features the
    covariance is kept, and the result is that of batch PCA; beyond, or with `oversampling`, memory is
    O(n_features * (n_components + oversampling)).

    Arrays on disk (`np.memmap`) are read in slabs.

    Parameters
    ----------
    n_components : int, default=None
        Number of components. If None, all: as many as features.
    oversampling : int, default=None
        Number of further columns that are learned for accuracy, instead of the covariance. If None, the covariance is
        kept up to 768 features, and max(10, 3 * n_components // 5) columns are learned beyond.
    half_life : float, default=None
        Number of messages after which the weight of a message has halved. If None, all messages have equal weight.
    center : bool, default=True
        Whether to subtract the running mean.
    warm_up : int, default=None
        Number of messages from which the first factor is computed. If None, max(200, twice the columns of the factor).
    dtype : {"float64", "float32"}, default=None
        Precision of the factor and of the computations with it. If None, that of the first array.
    missing : {"refuse", "impute"}, default="refuse"
        Whether NaN is an error, or a gap that is filled by what the other entries say. The
        coordinates and scores of a row with gaps are those to be expected, given its other entries.
    whiten : bool, default=False
        Whether coordinates are divided by their standard deviations.

    Sparse matrices are made dense slab by slab.

    The fitted attributes are those of `FittedAttributes`, named as in scikit-learn's `PCA`.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        oversampling: int | None = None,
        half_life: float | None = None,
        center: bool = True,
        warm_up: int | None = None,
        dtype: Literal["float64", "float32"] | None = None,
        missing: Literal["refuse", "impute"] = "refuse",
        whiten: bool = False,
    ) -> None:
        self.n_components = n_components
        self.oversampling = oversampling
        self.half_life = half_life
        self.center = center
        self.warm_up = warm_up
        self.dtype = dtype
        self.missing = missing
        self.whiten = whiten

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn the rows of X in one pass, discarding what was learned before.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        """
        if hasattr(self, "online_"):
            del self.online_
        return self.partial_fit(X)

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn the rows of X in addition to those learned before.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored

        Raises
        ------
        ValueError
            If a row cannot be learned; then no row of X is learned.
        """
        online: OnlineLearner | None = copy(self.online_) if hasattr(self, "online_") else None
        for slab in checks.slabs(X):
            V = validate_data(self, slab, reset=online is None, **checks.rules(self.missing))
            first = online is None
            online = online or self._new_learner(V)
            checks.refuse_extremes(V, online.config, first=first)
            checks.refuse_empty(V, online.config)
            online.add(V)
        self.online_ = online  # type: ignore[assignment]  # there is at least one slab
        return self

    def transform(self, X: ArrayLike) -> Array:
        """Coordinates of X along the components, of shape (n_samples, n_components), in the precision of X.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        """

        def coordinates(model: Model, V: Array) -> Array:
            found: Array = (scoring.complete(model, V).vectors - model.mean) @ model.components.T
            return (model.whiten(found) if self.whiten else found).astype(V.dtype, copy=False)

        return self._of_rows(X, coordinates)

    def score_samples(self, X: ArrayLike) -> F64:
        """Log-likelihood of each row by probabilistic PCA, as of scikit-learn's `PCA`, of shape (n_samples,).

        The lower, the more unusual. It is -(T2 + SPE / noise_variance_) / 2 and a constant, see docs/mathematics.md.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        """
        return self._of_rows(X, scoring.log_likelihood)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Mean log-likelihood of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        """
        return float(self.score_samples(X).mean())

    def p_values(self, X: ArrayLike) -> F64:
        """Share of the learned rows that were at least as unusual when they were new, of shape (n_samples,).

        The learned rows were scored before they were learned, in blocks; without any such score (fewer than some
        hundred rows learned) all are 1.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        """

        def p_values(model: Model, V: Array) -> F64:
            calibration = self.online_.calibrator.calibration
            return calibration.p_values(scoring.score(model, V), model.noise_variance).score

        return self._of_rows(X, p_values)

    def _of_rows(self, X: ArrayLike, compute: Callable[[Model, Array], Any]) -> F64:
        """What `compute` makes of the model and the rows of X, slab by slab."""
        check_is_fitted(self)
        slabs = (validate_data(self, slab, reset=False, **checks.rules(self.missing)) for slab in checks.slabs(X))
        return np.concatenate([compute(self.model_, V) for V in slabs])

    def inverse_transform(self, X: ArrayLike) -> Array:
        """The vectors with coordinates X along the components, of shape (n_samples, n_features), in the precision of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        coordinates: Array = check_array(X, dtype=[np.float64, np.float32])
        vectors = self.model_.reconstruct(coordinates.astype(np.float64), "whitened" if self.whiten else "principal")
        return vectors.astype(coordinates.dtype, copy=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _new_learner(self, V: Array) -> OnlineLearner:
        return OnlineLearner(FoldConfig(checks.config_of(self, V), half_life_messages=self.half_life))


def merge(parts: Sequence[ImplicitKrasulina]) -> ImplicitKrasulina:
    """Merge fitted estimators into one that has learned all their data.

    The merged estimator can continue with `partial_fit`. The order of the parts changes the result to rounding only.

    Parameters
    ----------
    parts : sequence of ImplicitKrasulina
        Fitted, with the same parameters and features.

    Raises
    ------
    ValueError
        If there are no parts or they cannot be merged.
    """
    if not parts:
        raise ValueError("nothing to merge")
    for part in parts:
        check_is_fitted(part)
    fold_config, config = parts[0].online_.fold_config, parts[0].online_.config
    if any(part.online_.fold_config != fold_config for part in parts):
        raise ValueError("only estimators with the same parameters and features can be merged")
    groups = grouped([part.online_.summary() for part in parts], config.columns)
    state = pooled(groups, config.columns, config.limits.columns, config.dtype)
    merged: ImplicitKrasulina = clone(parts[0])
    merged.n_features_in_ = parts[0].n_features_in_
    if hasattr(parts[0], "feature_names_in_"):
        merged.feature_names_in_ = parts[0].feature_names_in_
    merged.online_ = OnlineLearner(fold_config)
    calibrator = Calibrator.merged([part.online_.calibrator for part in parts])
    merged.online_.resume(state, sum(part.n_samples_seen_ for part in parts), calibrator)
    return merged
