"""Checks of the estimator: its parameters, when data first arrive, and every slab of data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import validate_data

from streampca.formats.judge import Judge
from streampca.pca.learning import LearningConfig

_SHAPING = ("n_components", "oversampling", "half_life", "center", "standardize", "warm_up", "dtype", "missing")
_SLAB = 32 * 2**20  # bytes of an array, as float64, that are converted and checked at a time


def create_config(estimator: Any, V: NDArray[Any]) -> LearningConfig:
    """The configuration for arrays like V (n, d). Raises `ValueError` that names a wrong parameter."""
    d = V.shape[1]
    k = d if estimator.n_components in (None, "mle") or share_of(estimator) else estimator.n_components
    half_life, warm_up, missing = estimator.half_life, estimator.warm_up, estimator.missing
    dtype = V.dtype if estimator.dtype is None else np.dtype(estimator.dtype)
    is_number, is_float = isinstance(k, int | np.integer), dtype in (np.dtype("float64"), np.dtype("float32"))
    kinds = 'a number of components, a share of the variance between 0 and 1, or "mle"'
    rules = {
        f"n_components={k!r} must be {kinds}": is_number,
        f"n_components={k!r} must be between 1 and the number of features, {d}": not is_number or 1 <= k <= d,
        "oversampling and warm_up cannot be negative": min(estimator.oversampling or 0, warm_up or 0) >= 0,
        f"half_life={half_life} must be a positive number of messages": half_life is None or half_life > 0,
        f'missing={missing!r} must be "refuse" or "impute"': missing in ("refuse", "impute"),
        f'dtype={estimator.dtype!r} must be "float64" or "float32"': is_float,
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise ValueError("; ".join(broken))
    return LearningConfig(
        d, int(k), estimator.oversampling, estimator.center, dtype.name, warm_up, missing == "impute",
        estimator.standardize,
    )  # fmt: skip


def shaping(estimator: Any) -> dict[str, Any]:
    """The parameters that shape what is learned: all but those of reading and of projecting."""
    return {name: getattr(estimator, name) for name in _SHAPING}


def refuse_changed(estimator: Any, parameters: dict[str, Any]) -> None:
    """Raise `ValueError` that names the parameters that differ from those with which rows were learned."""
    if changed := [name for name, value in shaping(estimator).items() if value != parameters[name]]:
        before = ", ".join(f"{name}={parameters[name]!r}" for name in changed)
        raise ValueError(f"{', '.join(changed)} changed since rows were learned with {before}: fit starts again")


def share_of(estimator: Any) -> float | None:
    """The share of the variance that the components shall explain; None if their number is set."""
    k = estimator.n_components
    return float(k) if isinstance(k, float | np.floating) and 0 < k < 1 else None


def slabs(X: Any, rows: int | None = None) -> Iterator[Any]:
    """Yield X in slabs of `rows` rows (default: 32 MiB), or X itself if it is no array."""
    if is_sparse := sparse.issparse(X):
        X = X.tocsr()
    if is_sparse or (isinstance(X, np.ndarray) and X.ndim == 2):
        rows = rows or max(1, _SLAB // (8 * max(X.shape[1], 1)))
        parts = (X[start : start + rows] for start in range(0, max(X.shape[0], 1), rows))
        yield from (part.toarray() for part in parts) if is_sparse else parts
    else:
        yield X


def rows_of(estimator: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """The rows of X (n, d), float64 or float32, checked as scikit-learn does; with `reset` they say what features are.

    Raises `ValueError` for NaN unless missing="impute", and for infinity.
    """
    dtypes = [np.float64, np.float32]
    V: NDArray[Any] = validate_data(estimator, X, reset=reset, dtype=dtypes, ensure_all_finite="allow-nan")
    if estimator.missing != "impute" and np.isnan(V).any():
        raise ValueError(f'Input X contains NaN: {type(estimator).__name__} fills it with missing="impute"')
    return V


def refuse_bad(V: NDArray[Any], config: LearningConfig, *, first: bool) -> None:
    """Raise `ValueError` for a vector of V (n, d) that cannot be learned.

    Also if the squares of all the first ones underflow; later small vectors just count as zero.
    """
    judge = Judge.of(config)
    if config.impute and config.components == config.dimensions:  # scikit-learn's checks have rows with gaps
        judge = replace(judge, min_observed=1)
    if bad := judge.first_bad(V):
        row, reason, message = bad
        raise ValueError(f"row {row}: {message}{'; scale the data down' if reason == 'too_large' else ''}")
    peak = float(np.fmax.reduce(np.abs(V), axis=None)) if first else 0.0
    if 0 < peak < config.smallest_value:
        raise ValueError(
            f"no entry is beyond {peak:.3g}; below {config.smallest_value:.3g} squares underflow in {config.dtype}; "
            "scale the data up"
        )
