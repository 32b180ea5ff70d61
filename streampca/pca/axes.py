"""Principal axes: the decomposition U Λ Uᵀ of a covariance, which is kept as such or is [C | F][C | F]ᵀ."""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F32, F64, Array
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State


def decomposed(state: State, columns: int) -> State:
    """The state with up to `columns` leading axes of its covariance, where that is kept, to the last digit."""
    if state.covariance is None:
        return state
    limits = ritz.Limits(columns, ritz.RANK_TOLERANCE, float(np.sqrt(np.finfo(np.float64).tiny)))
    return replace(state, C=ritz.of_covariance(_covariance(state, state.covariance), limits))


def _covariance(state: State, packed: F64) -> F64:
    """Σ (d, d) in the units of C."""
    return triangle.square(packed, len(state.mean), state.scale)


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
    known, total = state.known_entries, state.total_variance
    seen = None if known is None or known.min() > 0 else known > 0
    if state.missing is not None:
        every, total = _definite(state, rows.shape[1] if seen is None else int(seen.sum()))
        variance[: len(every)] = every[:components]
    return Model(rows, variance, state.mean, total, state.weight, state.scale, seen)


def _definite(state: State, dimensions: int) -> tuple[F64, float]:
    """The variances (n,) and the total variance of a state whose covariance is positive definite.

    Where pairs of entries were known for different messages, Σ may have negative eigenvalues. If then the columns have
    more than the total variance, the negative ones are the rest: their mean size says how far variances are off, and
    smaller ones count as that. Otherwise rows of no other kind than the learned ones would be very unusual along them.
    """
    positive, total = state.variance[:dimensions], state.total_variance
    excess = float(positive.sum()) - total
    if excess <= 0 or len(positive) == dimensions:
        return positive, total
    error = excess / (dimensions - len(positive))
    every = np.full(dimensions, error)
    every[: len(positive)] = np.maximum(positive, error)
    return every, float(every.sum())


def continuation(state: State, total_variance: float) -> F32:
    """What a model of the state lacks to continue it: Σ packed (n,), or [C | F] (d, r), in units of the model's total.

    The model's total variance is more than the state's where Σ is indefinite.
    """
    total, d = total_variance or 1.0, len(state.mean)
    if state.covariance is None:
        return np.asarray(state.C / np.sqrt(total), np.float32)
    return np.asarray(_covariance(state, state.covariance)[np.tril_indices(d)] / total, np.float32)


def continued(model: Model, learned: Array | None, known: F64 | None, count: int, config: LearningConfig) -> State:
    """The state from which a model of `count` messages is continued; `learned` is its `continuation`, `known` its N.

    Without `learned` the model is one that a worker has published. Where Σ is kept, it is continued as in probabilistic
    PCA: with the noise variance in all other directions, and N of 1 for dimensions that were seen.
    """
    d, total, kappa = model.dimensions, model.total_variance or 1.0, 1 / max(model.weight, 1.0)
    U, mean = model.components.T.astype(np.float64), model.mean.astype(np.float64)
    seen = np.ones(d) if model.seen is None else model.seen.astype(np.float64)
    if learned is None and model.seen is not None:
        known = np.outer(seen, seen)[np.tril_indices(d)] if config.keeps_covariance else seen
    state = State(np.zeros((d, 0)), mean, model.weight, total, count, kappa, scale=model.scale, known=known)
    D = np.ones(d) if model.scale is None else model.scale
    if not config.keeps_covariance:
        C = U * np.sqrt(model.explained_variance) if learned is None else learned * np.sqrt(total)
        C = np.ascontiguousarray(C[:, np.square(C).sum(axis=0) > 0], config.dtype)
        return replace(state, C=C, variances=None if model.scale is None else _varies(C, D) / D**2)
    if learned is None:
        noise = model.noise_variance
        covariance = noise * np.diag(seen) + (U * (model.explained_variance - noise)) @ U.T
        if model.scale is not None:
            np.fill_diagonal(covariance, _varies(U, D))
    else:
        covariance = triangle.square(learned * np.float64(total), d)
        state = replace(state, total_variance=float(covariance.trace()))
    state = replace(state, covariance=(covariance / np.outer(D, D))[np.tril_indices(d)])
    return replace(state, C=decomposed(state, config.columns).C.astype(config.dtype))


def _varies(C: Array, scale: F64) -> F64:
    """The variance of each entry of z, (d,): 1, but 0 of constant ones, which have D = 1 and no part in C (d, r)."""
    return np.asarray((scale != 1) | (np.abs(C).max(axis=1, initial=0.0) > 1e-6), np.float64)
