"""Checks of the estimator: of its parameters when data first arrive, and of each slab of data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import validate_data

from streampca.formats.judge import Judge
from streampca.pca.learning import LearningConfig

_LEARNING_PARAMETERS = (
    "n_components",
    "oversampling",
    "half_life",
    "center",
    "standardize",
    "warm_up",
    "dtype",
    "missing",
)
_SLAB_BYTES = 32 * 2**20  # size as float64 of the rows that are converted and checked at a time


def create_config(estimator: Any, V: NDArray[Any]) -> LearningConfig:
    """Return the configuration for arrays like V (n, d). Raises `ValueError` that names each wrong parameter."""
    d = V.shape[1]
    n_components = estimator.n_components
    is_all = n_components in (None, "mle") or share_of_variance(estimator) is not None
    k = d if is_all else n_components
    dtype = V.dtype if estimator.dtype is None else np.dtype(estimator.dtype)
    wrong = []
    if not isinstance(k, int | np.integer):
        kinds = 'a number of components, a share of the variance between 0 and 1, or "mle"'
        wrong.append(f"n_components={k!r} must be {kinds}")
    elif not 1 <= k <= d:
        wrong.append(f"n_components={k!r} must be between 1 and the number of features, {d}")
    if min(estimator.oversampling or 0, estimator.warm_up or 0) < 0:
        wrong.append("oversampling and warm_up cannot be negative")
    if estimator.half_life is not None and not estimator.half_life > 0:
        wrong.append(f"half_life={estimator.half_life} must be a positive number of messages")
    if estimator.missing not in ("refuse", "impute"):
        wrong.append(f'missing={estimator.missing!r} must be "refuse" or "impute"')
    if dtype not in (np.dtype("float64"), np.dtype("float32")):
        wrong.append(f'dtype={estimator.dtype!r} must be "float64" or "float32"')
    if wrong:
        raise ValueError("; ".join(wrong))
    return LearningConfig(
        dimensions=d,
        components=int(k),
        oversampling=estimator.oversampling,
        center=estimator.center,
        dtype=dtype.name,
        warm_up=estimator.warm_up,
        impute=estimator.missing == "impute",
        standardize=estimator.standardize,
    )


def learning_parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters that decide what is learned. The others only decide how rows are read or projected."""
    return {name: getattr(estimator, name) for name in _LEARNING_PARAMETERS}


def refuse_changed(estimator: Any, parameters: dict[str, Any]) -> None:
    """Raise `ValueError` if learning parameters differ from those with which earlier rows were learned."""
    changed = [name for name, value in learning_parameters(estimator).items() if value != parameters[name]]
    if changed:
        before = ", ".join(f"{name}={parameters[name]!r}" for name in changed)
        raise ValueError(f"{', '.join(changed)} changed since rows were learned with {before}: fit starts again")


def share_of_variance(estimator: Any) -> float | None:
    """Return the share of the variance that the components have to explain, or None if no share is asked for."""
    n_components = estimator.n_components
    is_share = isinstance(n_components, float | np.floating) and 0 < n_components < 1
    return float(n_components) if is_share else None


def split_into_slabs(X: Any, row_count: int | None = None) -> Iterator[Any]:
    """Yield X in slabs of `row_count` rows, by default as many as take 32 MiB. Sparse slabs are made dense.

    If X is neither an array nor a sparse matrix (a list, a data frame), yield X itself.
    """
    is_sparse = sparse.issparse(X)
    if is_sparse:
        X = X.tocsr()
    elif not (isinstance(X, np.ndarray) and X.ndim == 2):
        yield X
        return
    row_bytes = 8 * max(X.shape[1], 1)
    row_count = row_count or max(1, _SLAB_BYTES // row_bytes)
    for start in range(0, max(X.shape[0], 1), row_count):  # an empty X is one empty slab, which is then refused
        slab = X[start : start + row_count]
        yield slab.toarray() if is_sparse else slab


def check_rows(estimator: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Return the rows of X (n, d) as float64 or float32, after scikit-learn's checks.

    With `reset`, the features of X become the estimator's features. Without it, X must have the estimator's features.
    Raises `ValueError` for infinity, and for NaN unless missing="impute".
    """
    dtypes = [np.float64, np.float32]
    V: NDArray[Any] = validate_data(estimator, X, reset=reset, dtype=dtypes, ensure_all_finite="allow-nan")
    if estimator.missing != "impute" and np.isnan(V).any():
        raise ValueError(f'Input X contains NaN: {type(estimator).__name__} fills it with missing="impute"')
    return V


def refuse_bad(V: NDArray[Any], config: LearningConfig, *, first: bool) -> None:
    """Raise `ValueError` if a vector of V (n, d) cannot be learned.

    With `first`, V holds the first rows, and `ValueError` is also raised if the squares of all entries underflow. In
    later rows, entries as small as that count as zero.
    """
    judge = Judge.of(config)
    if config.impute and config.components == config.dimensions:
        # With as many components as dimensions, the judge would refuse every row with a missing entry. scikit-learn's
        # checks of estimators have such rows.
        judge = replace(judge, min_observed=1)
    bad = judge.first_bad(V)
    if bad:
        row, reason, message = bad
        remedy = "; scale the data down" if reason == "too_large" else ""
        raise ValueError(f"row {row}: {message}{remedy}")
    if not first:
        return
    peak = float(np.fmax.reduce(np.abs(V), axis=None))
    if 0 < peak < config.smallest_value:
        raise ValueError(
            f"no entry is beyond {peak:.3g}; below {config.smallest_value:.3g} squares underflow in {config.dtype}; "
            "scale the data up"
        )
