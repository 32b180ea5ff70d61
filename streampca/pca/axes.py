"""Principal axes: the decomposition U Λ Uᵀ of the covariance of a state, and the models that are made from it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F32, F64, Array
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State

_ROUNDING = 1e-5  # relative error of sums of numbers in single precision


def decompose(state: State, columns: int) -> State:
    """If a state keeps its covariance, replace the columns by up to `columns` leading axes, to the last digit."""
    if state.covariance is None:
        return state
    smallest = float(np.sqrt(np.finfo(np.float64).tiny))
    limits = ritz.Limits(columns=columns, rounding=ritz.RANK_TOLERANCE, smallest=smallest)
    return replace(state, C=ritz.decompose_covariance(_covariance(state, state.covariance), limits))


def _covariance(state: State, packed: F64) -> F64:
    """Return Σ (d, d) in the units of C."""
    return triangle.unpack(packed, len(state.mean), state.scale)


def principal(state: State, k: int) -> tuple[F64, F64]:
    """Return the k leading axes of a state as orthonormal rows (k, d), by falling variance, and the variances (k,).

    If the state has fewer columns, the other variances are 0, and the other axes are arbitrary but always the same.
    """
    U = np.asarray(ritz.orthonormalise(state.C[:, :k].astype(np.float64)), np.float64)
    r = min(k, state.rank)
    variance = np.zeros(k)
    variance[:r] = state.variance[:r]
    return choose_signs(_complete_basis(U, k).T), variance


def _complete_basis(U: F64, k: int) -> F64:
    """Add k − r orthonormal columns to U (d, r)."""
    if U.shape[1] == k:
        return U
    extra = np.random.default_rng(0).standard_normal((U.shape[0], k - U.shape[1]))
    for _ in range(2):  # the second pass removes the rounding errors of the first
        extra -= U @ (U.T @ extra)
        extra = np.linalg.qr(extra)[0]
    return np.hstack([U, extra])


def choose_signs(components: F64, reference: Array | None = None) -> F64:
    """Choose the sign of each row (k, d) so that its product with the most similar row of `reference` is positive.

    So a coordinate keeps its sign from one version of a model to the next. If `reference` is None, the largest entry of
    each row becomes positive.
    """
    similarity = components if reference is None else components @ reference.T
    nearest = similarity[np.arange(len(similarity)), np.abs(similarity).argmax(axis=1)]
    return components * np.where(nearest < 0, -1.0, 1.0)[:, None]


def model_of(state: State, components: int, reference: Array | None = None) -> Model:
    """Make the model of the `components` leading columns of a state.

    If `reference`, the components of an earlier model, has the same dimensions, the signs follow it.
    """
    rows, variance = principal(state, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = choose_signs(rows, reference)
    seen = _find_seen_entries(state)
    total_variance = state.total_variance
    if state.missing is not None:  # without missing entries, Σ cannot have negative eigenvalues
        dimensions = rows.shape[1] if seen is None else int(seen.sum())
        definite, total_variance = _make_definite(state, dimensions)
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


def _find_seen_entries(state: State) -> NDArray[np.bool_] | None:
    """Return the mask (d,) of the entries that some message has shown, or None if all were shown."""
    known = state.known_entries
    return None if known.min() > 0 else known > 0


def _make_definite(state: State, dimensions: int) -> tuple[F64, float]:
    """Return variances (n,) and a total variance of a state that a covariance without negative eigenvalues could have.

    If different pairs of entries were known for different messages, Σ may have negative eigenvalues. The variances of
    the columns may then sum to more than the total variance, and the negative eigenvalues make up for the excess. Their
    mean size says how far variances are off, so smaller variances are raised to it. Otherwise any new message would be
    very unusual along such axes. `dimensions` is the number of entries that were ever shown.
    """
    variance = state.variance[:dimensions]
    total_variance = state.total_variance
    excess = float(variance.sum()) - total_variance
    if excess <= 0 or len(variance) == dimensions:
        return variance, total_variance
    error = excess / (dimensions - len(variance))
    definite = np.full(dimensions, error)
    definite[: len(variance)] = np.maximum(variance, error)
    return definite, float(definite.sum())


def continuation(state: State, total_variance: float) -> F32:
    """Return what a model must keep of its state so that learning can continue, divided by `total_variance`.

    If the state keeps Σ, it is Σ packed (n,), otherwise [C | F] (d, r), divided by the root. `total_variance` is that
    of the model, which is more than that of the state if Σ has negative eigenvalues.
    """
    total_variance = total_variance or 1.0  # 0 if there is no variance; any other divisor gives zeros
    if state.covariance is None:
        return np.asarray(state.C / np.sqrt(total_variance), np.float32)
    packed = _covariance(state, state.covariance)[np.tril_indices(len(state.mean))]
    return np.asarray(packed / total_variance, np.float32)


def restore_state(model: Model, learned: Array | None, known: F64 | None, count: int, config: LearningConfig) -> State:
    """Restore the state from which learning continues after a model of `count` messages.

    `learned` is the `continuation` of the model, and `known` the N of its state. A model that a worker has published
    has neither. If Σ is kept, the state of such a model is that of probabilistic PCA: the noise variance is in all
    directions except the axes, and every dimension that was ever seen counts as known.
    """
    d = model.dimensions
    total_variance = model.total_variance or 1.0  # as in `continuation`
    U = model.components.T.astype(np.float64)
    seen = np.ones(d) if model.seen is None else model.seen.astype(np.float64)
    if learned is None and model.seen is not None:
        known = np.outer(seen, seen)[np.tril_indices(d)] if config.keeps_covariance else seen
    state = State(
        C=np.zeros((d, 0)),
        mean=model.mean.astype(np.float64),
        weight=model.weight,
        total_variance=total_variance,
        count=count,
        concentration=1 / max(model.weight, 1.0),
        scale=model.scale,
        known=known,
    )
    D = model.D
    if not config.keeps_covariance:  # the state has [C | F]
        C = U * np.sqrt(model.explained_variance) if learned is None else learned * np.sqrt(total_variance)
        C = np.ascontiguousarray(C[:, np.square(C).sum(axis=0) > 0], config.dtype)
        variances = None if model.scale is None else _find_standardised_variances(C, D) / D**2
        return replace(state, C=C, variances=variances)
    if learned is None:  # Σ by probabilistic PCA
        noise = model.noise_variance
        covariance = noise * np.diag(seen) + (U * (model.explained_variance - noise)) @ U.T
        if model.scale is not None:
            np.fill_diagonal(covariance, _find_standardised_variances(U, D))
    else:
        covariance = triangle.unpack(learned * np.float64(total_variance), d)
        trace = float(covariance.trace())
        if trace < (1 - _ROUNDING) * total_variance:  # Σ has negative eigenvalues: the model has more variance
            state = replace(state, total_variance=trace)
    covariance /= np.outer(D, D)  # a state keeps Σ in the units of v
    state = replace(state, covariance=covariance[np.tril_indices(d)])
    return replace(state, C=decompose(state, config.columns).C.astype(config.dtype))


def _find_standardised_variances(C: Array, scale: F64) -> F64:
    """Return the variance of each standardised entry, (d,): 0 for a constant entry, otherwise 1.

    A constant entry has the scale 1, since it is not divided by its standard deviation of 0, and no column of C (d, r)
    moves it.
    """
    return np.asarray((scale != 1) | (np.abs(C).max(axis=1, initial=0.0) > 1e-6), np.float64)
