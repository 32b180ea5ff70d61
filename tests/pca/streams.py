"""Streams, one pass over them, and NumPy's results, shared by the tests of the mathematics."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from streampca.pca.arrays import F64
from streampca.pca.blocked import triangle
from streampca.pca.jackknife import SamplingError, sampling_error
from streampca.pca.learning import GUARD, LearningConfig, learn
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
    """Batch PCA of X (n, d) by scikit-learn, with variances about n instead of n − 1."""
    pca, shrink = PCA(k).fit(X), (len(X) - 1) / len(X)
    return Model(pca.components_, shrink * pca.explained_variance_, pca.mean_, float(X.var(axis=0).sum()), len(X))


def one_pass(X: F64, config: LearningConfig, retention: F64 | float = 1.0) -> tuple[State, Losses]:
    """The state after the stream X (n, d) with a partial last block, and its losses."""
    V, kept, first = X.astype(config.dtype, copy=False), np.ones(len(X)) * retention, config.next_block(0)
    state, _ = learn(State.empty(config.dimensions, config.dtype), V[:first], kept[:first], config)
    return learn(state, V[first:], kept[first:], config)


def remaining_weights(retention: F64) -> F64:
    """The remaining weight (n,) of each message at the end of the stream; 1 for the last one."""
    left = np.ones(len(retention))
    left[:-1] = np.cumprod(retention[:0:-1])[::-1]
    return left


def covariance(X: F64, weights: F64 | None = None, center: bool = True) -> F64:
    """NumPy's weighted covariance, or second moment unless `center`."""
    weights = np.ones(len(X)) if weights is None else weights
    X = X.astype(np.float64)
    if center:
        return np.atleast_2d(np.cov(X, rowvar=False, aweights=weights, ddof=0))
    return (X * (weights / weights.sum())[:, None]).T @ X


def scale_of(X: F64, weights: F64 | None = None) -> F64:
    """D (d,) as scikit-learn's StandardScaler finds it for X (n, d)."""
    return np.asarray(1 / StandardScaler().fit(X, sample_weight=weights).scale_)


def start(seed: int, d: int = 7, k: int = 3, n: int = 20, scales: tuple[float, float] = (0.3, 3.0)) -> tuple[F64, F64]:
    """A well-conditioned factor (d, k), whose columns have lengths within `scales`, and messages (n, d)."""
    random = np.random.default_rng(seed)
    C = np.linalg.qr(random.standard_normal((d, k)))[0] * random.uniform(*scales, k)
    return C, random.standard_normal((n, d))


def state_of(C: F64) -> State:
    """A state with the factor C (d, r)."""
    return replace(State.empty(len(C)), C=C)


def learned(state: State) -> F64:
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
    limit = np.minimum(share, np.sort(random, axis=1)[:, X.shape[1] // 2])
    return np.where(random < limit[:, None], np.nan, X)


def merger_of(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> StateMerger:
    """A merger of these states, each with its share in `decay`."""
    merger = StateMerger(columns)
    for state, share in zip(states, decay or [1.0] * len(states), strict=True):
        merger.add(state, share)
    return merger


def merge(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> State:
    """The states as one of up to `columns` columns; the first, if there are no messages."""
    merger = merger_of(states, columns, decay)
    return merger.state(columns, states[0].C.dtype) if merger.weight else states[0]


def jackknife(
    states: Sequence[State], components: int, columns: int, decay: Sequence[float] | None = None
) -> SamplingError | None:
    """The error of the `components` leading axes of `merge(states, columns, decay)`."""
    merger = merger_of(states, columns, decay)
    merged = merger.state(components + GUARD, np.float64) if merger.weight else states[0]
    return sampling_error(merger.groups(), merged, components)


def values_in(thing: Any) -> Any:
    """All fields of a dataclass, arrays by their bits: for comparison."""
    if isinstance(thing, np.ndarray):
        return thing.dtype, thing.shape, thing.tobytes()
    return {f.name: values_in(getattr(thing, f.name)) for f in fields(thing)} if is_dataclass(thing) else thing
