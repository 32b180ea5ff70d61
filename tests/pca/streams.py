"""Streams, one pass over them, and NumPy's results, shared by the tests of the mathematics."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from streampca.pca.arrays import F64
from streampca.pca.blocked import triangle
from streampca.pca.jackknife import SamplingError, estimate_sampling_error
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.learning_config import F_COLUMNS_WITH_COVARIANCE
from streampca.pca.merge import StateMerger
from streampca.pca.model import Model
from streampca.pca.state import Losses, State


def gaussian(seed: int, n: int, spectrum: F64, offset: float = 0.0, turned: bool = True) -> F64:
    """Gaussian vectors (n, d) with standard deviations `spectrum` along axes that are rotated if `turned`."""
    random = np.random.default_rng(seed)
    d = len(spectrum)
    axes = np.linalg.qr(random.standard_normal((d, d)))[0] if turned else np.eye(d)
    return (random.standard_normal((n, d)) * spectrum) @ axes + offset


def batch_pca(X: F64, k: int) -> Model:
    """The model by batch PCA of X (n, d), with variances that are divided by n instead of n − 1."""
    pca = PCA(k).fit(X)
    variance = (len(X) - 1) / len(X) * pca.explained_variance_
    return Model(
        components=pca.components_,
        explained_variance=variance,
        mean=pca.mean_,
        total_variance=float(X.var(axis=0).sum()),
        weight=len(X),
    )


def one_pass(X: F64, config: LearningConfig, retention: F64 | float = 1.0) -> tuple[State, Losses]:
    """The state after the stream X (n, d) with a partial last block, and its losses."""
    V = X.astype(config.dtype, copy=False)
    retention = np.ones(len(X)) * retention
    first = config.next_block_size(0)
    state, _ = learn(State.empty(config.dimensions, config.dtype), V[:first], retention[:first], config)
    return learn(state, V[first:], retention[first:], config)


def remaining_weights(retention: F64) -> F64:
    """The weight of each message at the end of the stream, (n,); 1 for the last message."""
    weights = np.ones(len(retention))
    weights[:-1] = np.cumprod(retention[:0:-1])[::-1]  # the product of the later messages' retentions
    return weights


def covariance(X: F64, weights: F64 | None = None, center: bool = True) -> F64:
    """The weighted covariance by NumPy, or the second moment without `center`."""
    weights = np.ones(len(X)) if weights is None else weights
    X = X.astype(np.float64)
    if center:
        return np.atleast_2d(np.cov(X, rowvar=False, aweights=weights, ddof=0))
    return (X * (weights / weights.sum())[:, None]).T @ X


def compute_scale(X: F64, weights: F64 | None = None) -> F64:
    """D (d,) as scikit-learn's StandardScaler finds it for X (n, d)."""
    return np.asarray(1 / StandardScaler().fit(X, sample_weight=weights).scale_)


def start(seed: int, d: int = 7, k: int = 3, n: int = 20, scales: tuple[float, float] = (0.3, 3.0)) -> tuple[F64, F64]:
    """A factor (d, k) of orthogonal columns with lengths within `scales`, and messages (n, d)."""
    random = np.random.default_rng(seed)
    C = np.linalg.qr(random.standard_normal((d, k)))[0] * random.uniform(*scales, k)
    return C, random.standard_normal((n, d))


def make_state(C: F64) -> State:
    """A state with the factor C (d, r)."""
    return replace(State.empty(len(C)), C=C)


def find_covariance(state: State) -> F64:
    """The covariance as the state knows it, in float64."""
    if state.covariance is not None:
        return triangle.unpack(state.covariance, len(state.mean))
    C = state.C.astype(np.float64)
    return C @ C.T


def close(A: F64, B: F64, tolerance: float) -> bool:
    """Return whether A equals B up to a fraction of B's norm."""
    return bool(np.linalg.norm(A - B) <= tolerance * np.linalg.norm(B))


def excess(components: F64, covariance: F64) -> float:
    """The relative excess of the loss of orthonormal rows over the least possible loss."""
    best = np.linalg.eigvalsh(covariance)[: len(covariance) - len(components)].sum()
    loss = np.trace(covariance) - np.trace(components @ covariance @ components.T)
    return float(loss / best - 1)


def with_gaps(X: F64, share: float, seed: int = 0) -> F64:
    """X (n, d) with this share of the entries missing at random, but not more than half of a row."""
    random = np.random.default_rng(seed).random(X.shape)
    row_medians = np.sort(random, axis=1)[:, X.shape[1] // 2]
    limit = np.minimum(share, row_medians)
    return np.where(random < limit[:, None], np.nan, X)


def make_merger(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> StateMerger:
    """A merger of these states, each with the share in `decay` of its weight."""
    merger = StateMerger(columns)
    for state, share in zip(states, decay or [1.0] * len(states), strict=True):
        merger.add(state, share)
    return merger


def merge(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> State:
    """The merged state, of up to `columns` columns; the first state, if none has learned a message."""
    merger = make_merger(states, columns, decay)
    return merger.state(columns, states[0].C.dtype) if merger.weight else states[0]


def jackknife(
    states: Sequence[State], components: int, columns: int, decay: Sequence[float] | None = None
) -> SamplingError | None:
    """The error of the `components` leading axes of `merge(states, columns, decay)`."""
    merger = make_merger(states, columns, decay)
    merged = merger.state(components + F_COLUMNS_WITH_COVARIANCE, np.float64) if merger.weight else states[0]
    return estimate_sampling_error(merger.groups(), merged, components)


def values_in(thing: Any) -> Any:
    """All fields of a dataclass and of its fields, with arrays by their bits, so that == compares them."""
    if isinstance(thing, np.ndarray):
        return thing.dtype, thing.shape, thing.tobytes()
    if is_dataclass(thing):
        return {field.name: values_in(getattr(thing, field.name)) for field in fields(thing)}
    return thing
