"""Checks the parameters of the estimator when data first arrive, and each slab of data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import validate_data

from streampca.formats.judge import Judge
from streampca.pca.arrays import fill_masked, fill_nulls
from streampca.pca.learning import LearningConfig
from streampca.pca.missing_values import MissingValues, normalize_missing_values

_LEARNING_PARAMETERS = (
    "n_components",
    "oversampling",
    "half_life",
    "center",
    "standardize",
    "warm_up",
    "dtype",
    "missing",
    "missing_values",
)
_SLAB_BYTES = 32 * 2**20  # size as float64 of the rows that are converted and checked at a time


def create_config(estimator: Any, V: NDArray[Any]) -> LearningConfig:
    """Return the configuration with which rows like V (n, d) are learned.

    Raises `ValueError` that names each wrong parameter.
    """
    d = V.shape[1]
    n_components = estimator.n_components
    # All components are learned, if the rows decide later how many of them the model has.
    learns_all = n_components in (None, "mle") or share_of_variance(estimator) is not None
    k = d if learns_all else n_components
    dtype = V.dtype if estimator.dtype is None else np.dtype(estimator.dtype)
    problems = _find_wrong_parameters(estimator, k, d, dtype)
    if problems:
        raise ValueError("; ".join(problems))
    return LearningConfig(
        dimensions=d,
        components=int(k),
        oversampling=estimator.oversampling,
        center=estimator.center,
        dtype=dtype.name,
        warm_up=estimator.warm_up,
        impute=estimator.missing == "impute",
        missing_values=normalize_missing_values(estimator.missing_values),
        standardize=estimator.standardize,
    )


def _find_wrong_parameters(estimator: Any, k: Any, d: int, dtype: np.dtype[Any]) -> list[str]:
    """Return what is wrong with the parameters.

    d is the number of features. If `n_components` is None, "mle" or a share of the variance, all components are
    learned, and k is d. Otherwise k is `n_components` as the user gave it, which may have a wrong type.
    """
    problems = []
    if not isinstance(k, int | np.integer):
        kinds = 'a number of components, a share of the variance between 0 and 1, or "mle"'
        problems.append(f"n_components={k!r} must be {kinds}")
    elif not 1 <= k <= d:
        problems.append(f"n_components={k!r} must be between 1 and the number of features, {d}")
    if (estimator.oversampling or 0) < 0 or (estimator.warm_up or 0) < 0:
        problems.append("oversampling and warm_up cannot be negative")
    if estimator.half_life is not None and not estimator.half_life > 0:
        problems.append(f"half_life={estimator.half_life} must be a positive number of messages")
    if estimator.missing not in ("refuse", "impute"):
        problems.append(f'missing={estimator.missing!r} must be "refuse" or "impute"')
    if dtype not in (np.dtype("float64"), np.dtype("float32")):
        problems.append(f'dtype={estimator.dtype!r} must be "float64" or "float32"')
    return problems


def learning_parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters that decide what is learned."""
    parameters = {name: getattr(estimator, name) for name in _LEARNING_PARAMETERS}
    # As a text, since `refuse_changed` compares parameters, and equal arrays do not compare as equal.
    parameters["missing_values"] = normalize_missing_values(estimator.missing_values)
    return parameters


def refuse_changed(estimator: Any, earlier_parameters: dict[str, Any]) -> None:
    """Raise `ValueError` if the parameters have changed since earlier rows were learned with `earlier_parameters`."""
    current = learning_parameters(estimator)
    changed = [name for name, value in current.items() if value != earlier_parameters[name]]
    if changed:
        before = ", ".join(f"{name}={earlier_parameters[name]!r}" for name in changed)
        raise ValueError(f"{', '.join(changed)} changed since rows were learned with {before}: call fit to start again")


def share_of_variance(estimator: Any) -> float | None:
    """Return the share of the variance that the components must explain; None if `n_components` is not a share."""
    n_components = estimator.n_components
    is_share = isinstance(n_components, float | np.floating) and 0 < n_components < 1
    return float(n_components) if is_share else None


def split_into_slabs(X: Any, row_count: int | None = None) -> Iterator[Any]:
    """Yield X in dense slabs of `row_count` rows, by default of 32 MiB; a list or a data frame is one slab."""
    is_sparse = sparse.issparse(X)
    is_matrix = isinstance(X, np.ndarray) and X.ndim == 2
    if not (is_sparse or is_matrix):
        yield X
        return
    if is_sparse:
        X = X.tocsr()
    row_bytes = 8 * max(X.shape[1], 1)
    row_count = row_count or max(1, _SLAB_BYTES // row_bytes)
    for start in range(0, max(X.shape[0], 1), row_count):  # an empty X is one empty slab, which is then refused
        slab = X[start : start + row_count]
        yield slab.toarray() if is_sparse else slab


def check_rows(estimator: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Return the rows of X as a float array (n, d), with NaN for masked entries and null.

    With `reset`, the estimator takes the features of X. Without `reset`, raises `ValueError` if the features of X are
    not those of the estimator.
    """
    dtypes = [np.float64, np.float32]
    V: NDArray[Any] = validate_data(
        estimator, fill_nulls(fill_masked(X)), reset=reset, dtype=dtypes, ensure_all_finite=False
    )
    return V


def replace_missing(estimator: Any, V: NDArray[Any], config: LearningConfig) -> NDArray[Any]:
    """Return the rows V (n, d) with NaN in place of the numbers that mean "missing".

    Raises `ValueError` for infinity, and for missing entries unless missing="impute".
    """
    with_gaps = MissingValues.of(config.missing_values, config.dtype).to_nan(V)
    assert_all_finite(with_gaps, allow_nan=True, input_name="X")
    is_missing = np.isnan(with_gaps)
    if estimator.missing != "impute" and is_missing.any():
        number = V[is_missing][0]
        entry = "NaN" if np.isnan(number) else f"{number!s}, one of missing_values"
        raise ValueError(f'Input X contains {entry}: {type(estimator).__name__} fills it with missing="impute"')
    return with_gaps


def refuse_bad(V: NDArray[Any], config: LearningConfig) -> None:
    """Raise `ValueError` if a vector of V (n, d) cannot be learned."""
    judge = Judge.of(config)
    if config.impute and config.components == config.dimensions:
        # With so many components, the judge requires all d entries of a row, but scikit-learn's tests fit rows with
        # gaps.
        judge = replace(judge, min_observed=1)
    bad = judge.first_bad(V)
    if bad:
        remedy = "; scale the data down" if bad.reason == "too_large" else ""
        raise ValueError(f"row {bad.row}: {bad.message}{remedy}")


def refuse_underflow(V: NDArray[Any], config: LearningConfig) -> None:
    """Raise `ValueError` if all entries of the first vectors V (n, d) are so small that their squares underflow."""
    largest = float(np.fmax.reduce(np.abs(V), axis=None))
    if 0 < largest < config.smallest_value:
        raise ValueError(
            f"no entry is beyond {largest:.3g}; below {config.smallest_value:.3g} squares underflow in {config.dtype}; "
            "scale the data up"
        )
