"""Principal axes: the decomposition U Λ Uᵀ of a covariance, which is kept as such or is [C | F][C | F]ᵀ."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F32, F64, Array
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State

_ROUNDING = 1e-5  # of sums of numbers in single precision


def decomposed(state: State, columns: int) -> State:
    """If the covariance of a state is kept, the state with up to `columns` leading axes of it, to the last digit."""
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
    U = np.asarray(ritz.orthonormal(state.C[:, :k].astype(np.float64)), np.float64)
    r = min(k, state.rank)
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
    """The model of the `components` leading columns of a state.

    The signs are those of `reference` (rows of components) if it is given and has the same dimensions.
    """
    rows, variance = principal(state, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = signed(rows, reference)
    seen = _seen(state)
    total_variance = state.total_variance
    if state.missing is not None:  # only gaps can make Σ indefinite
        dimensions = rows.shape[1] if seen is None else int(seen.sum())
        definite, total_variance = _as_if_definite(state, dimensions)
        variance[: len(definite)] = definite[:components]
    return Model(
        components=rows,
        explained_variance=variance,
        mean=state.mean,
        total_variance=total_variance,
        weight=state.weight,
        scale=state.scale,
        seen=seen,
    )


def _seen(state: State) -> NDArray[np.bool_] | None:
    """The entries that some message has shown, (d,), as a model keeps them: None if these are all."""
    known = state.known_entries
    return None if known.min() > 0 else known > 0


def _as_if_definite(state: State, dimensions: int) -> tuple[F64, float]:
    """The variances (n,) of a state and its total variance, changed as if no eigenvalue of Σ were negative.

    Where pairs of entries were known for different messages, Σ may have negative eigenvalues. If so, the variances of
    all columns may sum to more than the total, and the negative eigenvalues make up for the excess: their mean size
    says how far variances are off, and smaller variances are raised to it. Otherwise any new message would be very
    unusual along such axes. `dimensions` is the number of entries that were ever shown.
    """
    variance, total_variance = state.variance[:dimensions], state.total_variance
    excess = float(variance.sum()) - total_variance
    if excess <= 0 or len(variance) == dimensions:
        return variance, total_variance
    error = excess / (dimensions - len(variance))
    definite = np.full(dimensions, error)
    definite[: len(variance)] = np.maximum(variance, error)
    return definite, float(definite.sum())


def continuation(state: State, total_variance: float) -> F32:
    """What a model lacks to be continued from its state, in units of the model's `total_variance`.

    Σ packed (n,), or else [C | F] (d, r). The model has more total variance than the state if Σ is indefinite.
    """
    total_variance = total_variance or 1.0  # 0 without variance, when nothing is divided
    if state.covariance is None:
        return np.asarray(state.C / np.sqrt(total_variance), np.float32)
    packed = _covariance(state, state.covariance)[np.tril_indices(len(state.mean))]
    return np.asarray(packed / total_variance, np.float32)


def continued(model: Model, learned: Array | None, known: F64 | None, count: int, config: LearningConfig) -> State:
    """The state from which a model of `count` messages is continued.

    `learned` is the model's `continuation`, `known` the N of its state. Without `learned` the model is one that a
    worker has published. Where Σ is kept, such a model is continued as in probabilistic PCA: with the noise variance in
    all directions but the axes, and all dimensions known that were ever seen.
    """
    d = model.dimensions
    total_variance = model.total_variance or 1.0  # as in `continuation`
    U, mean = model.components.T.astype(np.float64), model.mean.astype(np.float64)
    seen = np.ones(d) if model.seen is None else model.seen.astype(np.float64)
    if learned is None and model.seen is not None:
        known = np.outer(seen, seen)[np.tril_indices(d)] if config.keeps_covariance else seen
    state = State(
        C=np.zeros((d, 0)),
        mean=mean,
        weight=model.weight,
        total_variance=total_variance,
        count=count,
        concentration=1 / max(model.weight, 1.0),
        scale=model.scale,
        known=known,
    )
    D = model.D
    if not config.keeps_covariance:
        C = U * np.sqrt(model.explained_variance) if learned is None else learned * np.sqrt(total_variance)
        C = np.ascontiguousarray(C[:, np.square(C).sum(axis=0) > 0], config.dtype)
        variances = None if model.scale is None else _standardised_variances(C, D) / D**2
        return replace(state, C=C, variances=variances)
    if learned is None:
        noise = model.noise_variance
        covariance = noise * np.diag(seen) + (U * (model.explained_variance - noise)) @ U.T
        if model.scale is not None:
            np.fill_diagonal(covariance, _standardised_variances(U, D))
    else:
        covariance = triangle.square(learned * np.float64(total_variance), d)
        trace = float(covariance.trace())
        if trace < (1 - _ROUNDING) * total_variance:  # Σ is indefinite, so the model's total variance is more than its
            state = replace(state, total_variance=trace)
    state = replace(state, covariance=(covariance / np.outer(D, D))[np.tril_indices(d)])  # of v, as a state keeps it
    return replace(state, C=decomposed(state, config.columns).C.astype(config.dtype))


def _standardised_variances(C: Array, scale: F64) -> F64:
    """The variance of each standardised entry, (d,): 1, but 0 of a constant one, with D = 1 and no part in C (d, r)."""
    return np.asarray((scale != 1) | (np.abs(C).max(axis=1, initial=0.0) > 1e-6), np.float64)
