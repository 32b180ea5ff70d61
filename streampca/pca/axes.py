"""Principal axes: the decomposition U Λ Uᵀ of the covariance of a state, and the models that are made from it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F32, F64, Array, find_smaller_of_each_pair
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning_config import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State

_ROUNDING = 1e-5  # relative error of sums of numbers in single precision


def decompose(state: State, columns: int) -> State:
    """If a state keeps Σ, compute its columns from Σ: up to `columns` leading axes."""
    if state.covariance is None:
        return state
    smallest = float(np.sqrt(np.finfo(np.float64).tiny))  # smaller squares underflow
    limits = ritz.Limits(columns=columns, rounding=ritz.RANK_TOLERANCE, smallest=smallest)
    return replace(state, C=ritz.decompose_covariance(_standardise(state.covariance, state), limits))


def adapt_columns(state: State, config: LearningConfig) -> State:
    """If a state keeps Σ, compute from Σ the columns that `config` asks for. Drop Σ unless `config` keeps it."""
    if state.covariance is None:
        return state
    C = ritz.decompose_covariance(_standardise(state.covariance, state), config.limits)
    state = replace(state, C=C.astype(config.dtype))
    if config.keeps_covariance:
        return state
    return replace(
        state,
        covariance=None,
        variances=None if state.scale is None else state.entry_variances,
        known=None if state.known is None else state.known_shares,
    )


def _standardise(covariance: F64, state: State) -> F64:
    """Return the packed Σ of a state as a square (d, d); if the stream is standardised, in standard deviations."""
    return triangle.unpack(covariance, len(state.mean), state.scale)


def find_principal_axes(state: State, k: int) -> tuple[F64, F64]:
    """Return the k leading axes of a state, as orthonormal rows (k, d), and their variances.

    If the state has fewer columns, the remaining axes have variance 0.
    """
    learned_axes = np.asarray(ritz.orthonormalise(state.C[:, :k].astype(np.float64)), np.float64)
    learned_count = min(k, state.rank)
    variance = np.zeros(k)
    variance[:learned_count] = state.variance[:learned_count]
    return choose_signs(_complete_basis(learned_axes, k).T), variance


def _complete_basis(U: F64, k: int) -> F64:
    """Add columns to the orthonormal U (d, r) until there are k."""
    if U.shape[1] == k:
        return U
    extra = np.random.default_rng(0).standard_normal((U.shape[0], k - U.shape[1]))
    for _ in range(2):  # the second pass removes the rounding errors of the first
        extra -= U @ (U.T @ extra)
        extra = np.linalg.qr(extra)[0]
    return np.hstack([U, extra])


def choose_signs(components: F64, reference: Array | None = None) -> F64:
    """Choose the sign of each row (k, d) to agree with the most similar row of `reference`.

    Without a reference, the largest entry of each row becomes positive.
    """
    similarity = components if reference is None else components @ reference.T
    most_similar = np.abs(similarity).argmax(axis=1)
    largest = similarity[np.arange(len(similarity)), most_similar]
    signs = np.where(largest < 0, -1.0, 1.0)
    return components * signs[:, None]


def make_model(state: State, components: int, reference: Array | None = None) -> Model:
    """Make the model of the `components` leading columns of a state.

    The axes get the signs of a `reference` with the same dimensions.
    """
    leading_axes, variance = find_principal_axes(state, components)
    if reference is not None and reference.shape[1] == leading_axes.shape[1]:
        leading_axes = choose_signs(leading_axes, reference)
    seen = _find_seen_entries(state)
    total_variance = state.total_variance
    had_gaps = state.missing is not None or state.known is not None
    if had_gaps:  # otherwise Σ has no negative eigenvalues
        raised_variances, total_variance = _raise_small_variances(state)
        count = min(len(raised_variances), components)
        variance[:count] = raised_variances[:count]
    return Model(
        components=leading_axes,
        explained_variance=variance,
        mean=state.mean,
        total_variance=total_variance,
        weight=state.weight,
        scale=state.scale,
        seen=seen,
    )


def _find_seen_entries(state: State) -> NDArray[np.bool_] | None:
    """Return the mask (d,) of the entries that some message has shown, or None if all were shown."""
    known = state.known_shares
    return None if known.min() > 0 else known > 0


def _raise_small_variances(state: State) -> tuple[F64, float]:
    """If Σ has negative eigenvalues, raise small variances; return the variances and their total.

    The mean negative eigenvalue estimates the error of every variance.
    """
    dimensions = state.seen_dimensions
    variance = state.variance[:dimensions]
    total_variance = state.total_variance
    other_directions = dimensions - len(variance)
    negative_total = float(variance.sum()) - total_variance
    if negative_total <= 0 or not other_directions:
        return variance, total_variance
    error = negative_total / other_directions
    raised = np.full(dimensions, error)
    raised[: len(variance)] = np.maximum(variance, error)
    return raised, float(raised.sum())


def compute_continuation(state: State, model_total_variance: float) -> F32:
    """Return what a model must keep of its state so that learning can continue.

    This is the standardised Σ/t, packed, or [C | F]/√t (d, r), with the model's total variance t.
    """
    divisor = model_total_variance or 1.0
    if state.covariance is None:
        return np.asarray(state.C / np.sqrt(divisor), np.float32)
    packed = _standardise(state.covariance, state)[np.tril_indices(len(state.mean))]
    return np.asarray(packed / divisor, np.float32)


def restore_state(
    model: Model, continuation: Array | None, known: F64 | None, count: int, config: LearningConfig
) -> State:
    """Restore the state from which learning continues after a model of `count` messages.

    Without a `continuation`, the covariance is made from the model's axes and noise.
    """
    d = model.dimensions
    seen = np.ones(d) if model.seen is None else model.seen.astype(np.float64)
    known_shares = known
    if continuation is None and model.seen is not None:
        known_shares = find_smaller_of_each_pair(seen) if config.keeps_covariance else seen
    state = State(
        C=np.zeros((d, 0)),
        mean=model.mean.astype(np.float64),
        weight=model.weight,
        total_variance=model.total_variance,
        count=count,
        concentration=1 / max(model.weight, 1.0),  # as of messages with equal shares
        scale=model.scale,
        known=known_shares,
    )
    if config.keeps_covariance:
        return _restore_covariance(state, model, continuation, seen, config)
    return _restore_factor(state, model, continuation, config)


def _restore_factor(state: State, model: Model, continuation: Array | None, config: LearningConfig) -> State:
    """Return the state with [C | F] from `continuation`, [C | F]/√(total variance), or from the model's axes."""
    if continuation is None:
        C = model.components.T.astype(np.float64) * np.sqrt(model.explained_variance)
    else:
        C = continuation * np.sqrt(state.total_variance)
    has_variance = np.square(C).sum(axis=0) > 0
    C = np.ascontiguousarray(C[:, has_variance], config.dtype)
    variances = None
    if model.scale is not None:
        variances = _find_standardised_variances(C, model.scale) / model.scale**2
    return replace(state, C=C, variances=variances)


def _restore_covariance(
    state: State, model: Model, continuation: Array | None, seen: F64, config: LearningConfig
) -> State:
    """Return the state with Σ and [C | F], from `continuation`, Σ/(total variance), or by probabilistic PCA."""
    d = model.dimensions
    if continuation is None:
        standardised_covariance = _make_covariance(model, seen)
    else:
        standardised_covariance = triangle.unpack(continuation * np.float64(state.total_variance), d)
        trace = float(standardised_covariance.trace())
        # With negative eigenvalues, `make_model` has raised the total variance.
        has_negative_eigenvalues = trace < (1 - _ROUNDING) * state.total_variance
        if has_negative_eigenvalues:
            state = replace(state, total_variance=trace)
    covariance = standardised_covariance / np.outer(model.D, model.D)
    state = replace(state, covariance=covariance[np.tril_indices(d)])
    return replace(state, C=decompose(state, config.columns).C.astype(config.dtype))


def _make_covariance(model: Model, seen: F64) -> F64:
    """Make the covariance (d, d) of probabilistic PCA: noise in `seen` entries, and more variance along the axes."""
    U = model.components.T.astype(np.float64)
    # Without variance, `noise_variance` is still positive, but must not enter Σ.
    noise = model.noise_variance if model.total_variance > 0 else 0.0
    covariance = noise * np.diag(seen) + (U * (model.explained_variance - noise)) @ U.T
    if model.scale is not None:
        learned_axes = U[:, model.explained_variance > 0]
        np.fill_diagonal(covariance, _find_standardised_variances(learned_axes, model.scale))
    return np.asarray(covariance)


def _find_standardised_variances(C: Array, scale: F64) -> F64:
    """Return the variance of each standardised entry, (d,): 0 for a constant entry, otherwise 1.

    A constant entry has the scale 1 and a row of zeros in C. An entry that varies may have one of these, hardly both.
    """
    is_on_axes = np.abs(C).max(axis=1, initial=0.0) > 1e-6
    has_variance = (scale != 1) | is_on_axes
    return np.asarray(has_variance, np.float64)
