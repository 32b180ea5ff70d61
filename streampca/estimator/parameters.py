"""The estimator's parameters, checked when data first arrive."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.learning import LearningConfig


def config_of(estimator: Any, d: int) -> LearningConfig:
    """The configuration for d features. Raises `ValueError` that names a wrong parameter."""
    k = d if estimator.n_components is None else estimator.n_components
    half_life, gauge, warm_up, missing = (getattr(estimator, n) for n in ("half_life", "gauge", "warm_up", "missing"))
    if not 1 <= k <= d:
        raise ValueError(f"n_components={k} must be between 1 and the number of features, {d}")
    if (estimator.oversampling or 0) < 0 or (warm_up is not None and warm_up < 0):
        raise ValueError("oversampling and warm_up cannot be negative")
    if half_life is not None and not half_life > 0:
        raise ValueError(f"half_life={half_life} must be a positive number of messages")
    if gauge not in ("unit", "free"):
        raise ValueError(f'gauge={gauge!r} must be "unit" or "free"')
    if gauge == "free" and (half_life is not None or warm_up):
        raise ValueError('half_life and warm_up need gauge="unit": the free gauge forgets as its steps say')
    if missing not in ("refuse", "impute"):
        raise ValueError(f'missing={missing!r} must be "refuse" or "impute"')
    if missing == "impute" and gauge == "free":
        raise ValueError('missing="impute" needs gauge="unit"')
    dtype = np.dtype(estimator.dtype)
    if dtype not in (np.dtype("float64"), np.dtype("float32")):
        raise ValueError(f'dtype={estimator.dtype!r} must be "float64" or "float32"')
    impute = missing == "impute"
    return LearningConfig(d, k, estimator.oversampling, estimator.center, dtype.name, warm_up, impute)


def finite_or_gaps(estimator: Any) -> dict[str, Any]:
    """The options of scikit-learn's `validate_data`: whether NaN is allowed."""
    return {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan" if _imputes(estimator) else True}


def refuse_empty(V: NDArray[Any], config: LearningConfig) -> None:
    """Raise `ValueError` for a row of V (n, d) that is nothing but a gap."""
    if config.impute and (empty := np.isnan(V).all(axis=1)).any():
        raise ValueError(f"row {int(empty.argmax())} has no entry")


def _imputes(estimator: Any) -> bool:
    return bool(estimator.missing == "impute")
