"""Principal axes: the decomposition U Λ Uᵀ of a covariance, which is kept as such or is [C | F][C | F]ᵀ."""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F32, F64, Array
from streampca.pca.blocked import ritz, triangle
from streampca.pca.blocked.ritz import Limits
from streampca.pca.learning import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State


def decomposed(state: State, columns: int) -> State:
    """The state with up to `columns` leading axes of its covariance, where that is kept, to the last digit."""
    if state.covariance is None:
        return state
    limits = Limits(columns, ritz.RANK_TOLERANCE, float(np.sqrt(np.finfo(np.float64).tiny)))
    return replace(state, C=ritz.of_covariance(triangle.square(state.covariance, len(state.mean)), limits))


def principal(state: State, k: int) -> tuple[F64, F64]:
    """The k leading columns of a state as orthonormal rows (k, d), by falling variance, and the variances (k,).

    Beyond its rank the variances are 0 and the axes an arbitrary but deterministic orthonormal completion.
    """
    U, r = np.asarray(ritz.orthonormal(state.C[:, :k].astype(np.float64)), np.float64), min(k, state.rank)
    variance = np.zeros(k)
    variance[:r] = state.variance[:r]
    return signed(_completed(U, k).T), variance


def _completed(U: F64, k: int) -> F64:
    """U (d, r) with k − r further orthonormal columns."""
    if U.shape[1] == k:
        return U
    extra = np.random.default_rng(0).standard_normal((U.shape[0], k - U.shape[1]))
    for _ in range(2):  # the second time against rounding errors
        extra -= U @ (U.T @ extra)
        extra = np.linalg.qr(extra)[0]
    return np.hstack([U, extra])


def signed(components: F64, reference: Array | None = None) -> F64:
    """Rows (k, d), each with the sign that makes its product with the most similar row of `reference` positive.

    So a coordinate keeps its sign from one version of a model to the next. None: its largest entry becomes positive.
    """
    similarity = components if reference is None else components @ reference.T
    nearest = similarity[np.arange(len(similarity)), np.abs(similarity).argmax(axis=1)]
    return components * np.where(nearest < 0, -1.0, 1.0)[:, None]


def model_of(state: State, components: int, reference: Array | None = None) -> Model:
    """The model of the k leading columns of a state, with the signs of `reference` (rows of components) if given."""
    rows, variance = principal(state, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = signed(rows, reference)
    return Model(rows, variance, state.mean, state.total_variance, state.weight)


def continuation(state: State) -> F32:
    """State that a model lacks to continue, in units of the total variance: Σ packed (n,), or [C | F] (d, r)."""
    total = state.total_variance or 1.0
    return np.asarray(state.C / np.sqrt(total) if state.covariance is None else state.covariance / total, np.float32)


def continued(model: Model, learned: Array | None, count: int, config: LearningConfig) -> State:
    """The state from which a model of `count` messages is continued; `learned` is its `continuation`.

    None: a model as workers publish it, continued where Σ is kept as in probabilistic PCA: with the noise variance in
    all other directions.
    """
    U, variance, total = model.components.astype(np.float64), model.explained_variance, model.total_variance or 1.0
    state = State(np.zeros((model.dimensions, 0)), model.mean.astype(np.float64), model.weight, total, count)
    if not config.keeps_covariance:
        C = U.T * np.sqrt(variance) if learned is None else learned * np.sqrt(total)
        return replace(state, C=np.ascontiguousarray(C[:, np.square(C).sum(axis=0) > 0], config.dtype))
    noise = model.noise_variance
    if learned is None:
        learned = noise * np.eye(len(U.T)) + (U.T * (variance - noise)) @ U
        learned = learned[np.tril_indices(len(learned))] / total
    state = decomposed(replace(state, covariance=learned * np.float64(total)), config.limits.columns)
    return replace(state, C=state.C.astype(config.dtype))
