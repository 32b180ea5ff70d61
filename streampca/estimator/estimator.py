"""`StreamingPCA`, streaming PCA as a scikit-learn estimator."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_array, check_is_fitted

from streampca.estimator import checks, saved
from streampca.estimator.attributes import FittedAttributes, OnlineFit
from streampca.estimator.threads import one_thread
from streampca.fold import model_file
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.model_file import PublishedModel
from streampca.fold.past_scores import PastScoresBuilder
from streampca.fold.replacing import replace_file
from streampca.fold.restored_fold import restore_fold
from streampca.pca.arrays import F64, Array, fill_masked
from streampca.pca.model import Basis
from streampca.pca.past_scores import PastScores


class StreamingPCA(FittedAttributes, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Incremental principal component analysis by the implicit Krasulina update, corrected by Rayleigh-Ritz.

    Learns the principal components in one pass over the data, in batches of any size (`partial_fit`), without a step
    size. The result does not depend on the sizes of the batches, not even in its last bit. Up to 768 features the
    covariance is kept, and the result is that of batch PCA; beyond, memory is
    O(n_features * (n_components + oversampling)).

    Arrays on disk (`np.memmap`) are read, and sparse matrices made dense, slab by slab.

    Parameters
    ----------
    n_components : int, float or "mle", default=None
        Number of components. If None, as many as features, or as rows if these are fewer. Between 0 and 1: the smallest
        number that explains more than this share of the variance. "mle": Minka's choice, as of `PCA`. Unless it is a
        number, all components are learned, which takes the memory of a covariance.
    oversampling : int, default=None
        Number of further columns that are learned for accuracy. If None, 10 where the covariance is kept, and
        40 + max(10, 3 * n_components // 5) beyond.
    half_life : float, default=None
        Number of messages after which the weight of a message has halved. If None, all messages have equal weight.
    center : bool, default=True
        Whether to subtract the running mean.
    standardize : bool, default=False
        Whether to divide each feature by its standard deviation, as `StandardScaler` before `PCA` does, in the same
        pass. Components, variances and coordinates are then those of the standardised features.
    warm_up : int, default=None
        Number of messages from which the first factor is computed. If None, max(200, 2 * n_components).
    dtype : {"float64", "float32"}, default=None
        Precision of the factor and of the computations with it. If None, the first array's.
    missing : {"refuse", "impute"}, default="refuse"
        Whether a missing entry (NaN, null, or behind a mask) is an error, or is filled by what the others say. The
        coordinates and scores of a row with missing entries are those to be expected, given its other entries.
    missing_values : float or list of floats, default=None
        Numbers that stand for NaN in X, such as -9999. They are compared in the precision of the factor.
    whiten : bool, default=False
        Whether coordinates are divided by their standard deviations.
    copy : bool, default=True
        For those who come from `IncrementalPCA`. X is never changed.
    batch_size : int, default=None
        Number of rows that are converted and checked at a time; it changes no bit. If None, as many as take 32 MiB.

    The fitted attributes are those of `FittedAttributes`, named as in scikit-learn's `PCA`.
    """

    def __init__(
        self,
        n_components: int | float | Literal["mle"] | None = None,
        *,
        oversampling: int | None = None,
        half_life: float | None = None,
        center: bool = True,
        standardize: bool = False,
        warm_up: int | None = None,
        dtype: Literal["float64", "float32"] | None = None,
        missing: Literal["refuse", "impute"] = "refuse",
        missing_values: float | Sequence[float] | None = None,
        whiten: bool = False,
        copy: bool = True,
        batch_size: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.oversampling = oversampling
        self.half_life = half_life
        self.center = center
        self.standardize = standardize
        self.warm_up = warm_up
        self.dtype = dtype
        self.missing = missing
        self.missing_values = missing_values
        self.whiten = whiten
        self.copy = copy
        self.batch_size = batch_size

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn the rows of X (n_samples, n_features) in one pass, discarding what was learned before."""
        self.__dict__.pop("online_", None)
        return self.partial_fit(X)

    @one_thread
    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn the rows of X (n_samples, n_features) in addition to the rows learned before.

        Raises `ValueError` and learns no row if a row cannot be learned, if parameters have changed, or if the
        estimator was loaded from a worker's model.
        """
        fit: OnlineFit | None = getattr(self, "online_", None)
        if fit:
            fit.refuse_worker_model()
            checks.refuse_changed(self, fit.parameters)
        for slab in checks.split_into_slabs(X, self.batch_size):
            is_first = fit is None
            V = checks.check_rows(self, slab, reset=is_first)
            if fit is None:
                fit = self._start_fit(V)
            learning = fit.config.learning
            V = checks.replace_missing(self, V, learning)
            checks.refuse_bad(V, learning)
            # If all values of the first slab are too small to be squared, no variance can be learned from it. In later
            # slabs, values that are so small count as zero.
            if is_first:
                checks.refuse_underflow(V, learning)
            fit = fit.learn(V)  # if a later slab is refused, `online_` is unchanged
        self.online_ = fit  # type: ignore[assignment]  # there is at least one slab
        return self

    @one_thread
    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator into a file, without pickle. An earlier file is replaced in one step.

        `load` and `streampca fit --start-from` continue from it, and `streampca serve` and `project` take it. Raises
        `ValueError` if the name of a feature is empty or longer than 255 characters.
        """
        check_is_fitted(self)
        replace_file(Path(path), saved.encode(self))

    @classmethod
    @one_thread
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the estimator in a file of `save`, of `streampca fit` or of a worker.

        The estimator continues to learn:

        - from a file of `save`: with the same bits as the estimator that was saved
        - from a file of `streampca fit`: with the same numbers as if it had learned all rows itself, up to rounding
        - from a worker's model: not at all, `partial_fit` raises `ValueError`

        Raises `StreampcaError` if the file cannot be read.
        """
        published = model_file.decode_file(Path(path).read_bytes(), str(path))
        estimator = cls(**saved.find_parameters(published))
        estimator.n_features_in_ = published.model.dimensions
        if published.names is not None:
            estimator.feature_names_in_ = np.array(published.names, dtype=object)
        estimator.online_ = estimator._restore_fit(published)
        return estimator

    def _restore_fit(self, published: PublishedModel) -> OnlineFit:
        """Return a fit that continues the model of a file.

        If the file has no fold, the fold is estimated from the model. The estimate would give other projections than
        the model, so the fit also holds the model, and uses it until further rows are learned.
        """
        fit = self._create_fit(saved.find_config(published))
        if published.past_scores:
            fit.past_scores.histograms = published.past_scores
        has_fold = published.checkpoint is not None
        fold = restore_fold(published, fit.config)  # the fold of the file, or an estimate
        loaded_model = None if has_fold else published
        return replace(fit, fold=fold, loaded_model=loaded_model)

    def transform(self, X: ArrayLike) -> Array:
        """Return the coordinates (n_samples, n_components) of X (n_samples, n_features), with the dtype of X.

        With whiten=True, they are divided by their standard deviations.
        """
        fit = self._fitted

        def project(V: Array) -> Array:
            """Return the coordinates of the rows V, with their dtype."""
            projected = fit.model.project(V.astype(np.float64, copy=False))
            # scikit-learn whitens by standard deviations with ddof=1, which are those of `unbiased_model`.
            coordinates = projected.in_basis(self._basis, whitening_model=fit.unbiased_model)
            return coordinates.astype(V.dtype, copy=False)

        return self._compute_by_slab(X, project)

    def score_samples(self, X: ArrayLike) -> F64:
        """Return the log-likelihood (n_samples,) of each row of X by probabilistic PCA.

        The lower it is, the more unusual is the row. It is -(T2 + SPE / `noise_variance_`) / 2 plus a constant; see
        docs/mathematics.md.
        """
        model = self._fitted.unbiased_model  # with ddof=1, as in scikit-learn
        return self._compute_by_slab(X, lambda V: model.project(V).log_likelihood)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the mean log-likelihood of the rows of X."""
        return float(self.score_samples(X).mean())

    def p_values(self, X: ArrayLike) -> F64:
        """Return the p-value of each row of X (n_samples,): the share of learned rows at least as unusual.

        Each learned row was scored just before it was learned. Before there are scores, all p-values are 1.
        """
        past_scores = self._fitted.past_scores.histograms
        model = self.model_

        def compute_p_values(V: Array) -> F64:
            scores = model.project(V).relative_scores  # divided by the scores that the model expects of new rows
            p_values = past_scores.p_values(scores)
            return p_values.score  # the score combines T² and SPE, which have p-values of their own

        return self._compute_by_slab(X, compute_p_values)

    @one_thread
    def _compute_by_slab(self, X: ArrayLike, compute: Callable[[Array], Any]) -> F64:
        """Call `compute` with the checked rows of each slab of X, and return the results joined."""
        results = []
        for slab in checks.split_into_slabs(X, self.batch_size):
            V = checks.check_rows(self, slab, reset=False)
            V = checks.replace_missing(self, V, self._fitted.config.learning)
            results.append(compute(V))
        return np.concatenate(results)

    @one_thread
    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return the vectors (n_samples, n_features) whose coordinates are X (n_samples, n_components).

        The vectors have the dtype of X. With whiten=True, X are whitened coordinates.
        """
        model = self._fitted.unbiased_model  # with ddof=1, as in `transform`
        coordinates: Array = check_array(fill_masked(X), dtype=[np.float64, np.float32])
        vectors = model.reconstruct(coordinates.astype(np.float64), self._basis)
        return vectors.astype(coordinates.dtype, copy=False)

    @property
    def _basis(self) -> Basis:
        """The basis of the coordinates. Whitened coordinates are divided by their standard deviations."""
        return "whitened" if self.whiten else "principal"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _start_fit(self, V: Array) -> OnlineFit:
        """Return the fit that has learned no row yet, for rows like V (n, d)."""
        return self._create_fit(FoldConfig(checks.create_config(self, V), half_life_messages=self.half_life))

    def _create_fit(self, config: FoldConfig) -> OnlineFit:
        """Return the fit that has learned no row yet, with this configuration."""
        # As in scikit-learn, `n_components` may be a share of the variance. Then all components are learned, and each
        # model has as many as explain this share. Past scores are scores by such models.
        components_or_share = checks.share_of_variance(self) or config.learning.components
        return OnlineFit(
            parameters=checks.learning_parameters(self),
            config=config,
            fold=Fold.empty(config.learning),
            past_scores=PastScoresBuilder(components_or_share),
        )


@one_thread
def merge(parts: Sequence[StreamingPCA]) -> StreamingPCA:
    """Merge fitted estimators with the same parameters and features into one that has learned all their data.

    If no row has missing entries, the order of the parts changes only the rounding. Otherwise the order also changes
    the covariances, because each part is pooled with the sum of the parts before it. Raises `ValueError` if there are
    no parts, or if their parameters or features differ.
    """
    if not parts:
        raise ValueError("nothing to merge")
    fits = [part._fitted for part in parts]
    _refuse_different(fits)
    first = fits[0]
    names_of_parts = [part.feature_names_in_ for part in parts if hasattr(part, "feature_names_in_")]
    have_same_names = all(np.array_equal(names, names_of_parts[0]) for names in names_of_parts)
    if not have_same_names:
        raise ValueError("only estimators with the same feature names, in the same order, can be merged")
    merger = FoldMerger(first.config)
    for fit in fits:
        merger.add(fit.fold)
    fold = merger.make_fold(sum(part.n_samples_seen_ for part in parts))
    # All past scores are in the histograms, because `OnlineFit.learn` adds the scores of each block at once.
    bar_heights_of_parts = [fit.past_scores.histograms.weights for fit in fits]
    summed_histograms = PastScores(np.sum(bar_heights_of_parts, axis=0))
    scores_builder = replace(first.past_scores, histograms=summed_histograms)
    merged: StreamingPCA = clone(parts[0])
    merged.n_features_in_ = parts[0].n_features_in_
    if names_of_parts:
        merged.feature_names_in_ = names_of_parts[0]
    merged.online_ = replace(first, fold=fold, past_scores=scores_builder, loaded_model=None)
    return merged


def _refuse_different(fits: Sequence[OnlineFit]) -> None:
    """Raise `ValueError` if fits differ in their parameters, or if one of them was loaded from a worker's model."""
    first = fits[0]
    for fit in fits:
        fit.refuse_worker_model()  # the file of a worker's model holds too little to be merged
        has_same_config = fit.config == first.config
        # An `n_components` that is a share of the variance is not in `config`.
        has_same_components = fit.components_or_share == first.components_or_share
        if not has_same_config or not has_same_components:
            raise ValueError("only estimators with the same parameters and features can be merged")
