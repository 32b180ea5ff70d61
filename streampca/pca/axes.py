"""Principal axes: the decomposition U Λ Uᵀ of the covariance of a state, and the models that are made from it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F32, F64, Array
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning_config import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State

_ROUNDING = 1e-5  # relative error of sums of numbers in single precision


def decompose(state: State, columns: int) -> State:
    """If a state keeps Σ, compute its columns from Σ: up to `columns` leading axes, as exactly as float64 allows.

    Any other state is returned unchanged.
    """
    if state.covariance is None:
        return state
    # Left out: axes with less than the share `rounding` of the largest variance, and standard deviations below
    # `smallest`, whose squares would underflow.
    smallest = float(np.sqrt(np.finfo(np.float64).tiny))
    limits = ritz.Limits(columns=columns, rounding=ritz.RANK_TOLERANCE, smallest=smallest)
    covariance = triangle.unpack(state.covariance, len(state.mean), state.scale)  # DΣD, in the units of C
    return replace(state, C=ritz.decompose_covariance(covariance, limits))


def adapt_columns(state: State, config: LearningConfig) -> State:
    """If a state keeps Σ, compute from Σ the columns that `config` asks for. Return any other state unchanged.

    If `config` does not keep Σ, the result keeps how often each entry was known and, if the stream is standardised, the
    variances of the entries.
    """
    if state.covariance is None:
        return state
    covariance = triangle.unpack(state.covariance, config.dimensions, state.scale)  # DΣD, in the units of C
    # `config.limits`: how many columns there may be, and the smallest variance of a column.
    state = replace(state, C=ritz.decompose_covariance(covariance, config.limits).astype(config.dtype))
    if config.keeps_covariance:
        return state
    # Of Σ, only the diagonal remains. `known` also had a share for each pair of entries: the share of the weight for
    # which both were known. Without Σ, it has only the diagonal: a share for each entry.
    return replace(
        state,
        covariance=None,
        variances=None if state.scale is None else state.entry_variances,
        known=None if state.known is None else state.known_entries,
    )


def find_principal_axes(state: State, k: int) -> tuple[F64, F64]:
    """Return the k leading axes of a state, as orthonormal rows (k, d) by falling variance, and their variances (k,).

    If the state has fewer columns, the remaining axes have variance 0, and arbitrary directions, always the same.
    """
    learned_axes = np.asarray(ritz.orthonormalise(state.C[:, :k].astype(np.float64)), np.float64)
    learned_count = min(k, state.rank)
    variance = np.zeros(k)
    variance[:learned_count] = state.variance[:learned_count]
    return choose_signs(_complete_basis(learned_axes, k).T), variance


def _complete_basis(U: F64, k: int) -> F64:
    """Add columns to U (d, r) until there are k; all are orthonormal. The same U always gets the same columns."""
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
    # Without a reference, each row is compared with the directions of the dimensions.
    similarity = components if reference is None else components @ reference.T
    most_similar = np.abs(similarity).argmax(axis=1)
    largest = similarity[np.arange(len(similarity)), most_similar]
    signs = np.where(largest < 0, -1.0, 1.0)
    return components * signs[:, None]


def make_model(state: State, components: int, reference: Array | None = None) -> Model:
    """Make the model of the `components` leading columns of a state.

    `reference` are the components of an earlier model. If its dimensions are the same, the new axes get its signs.
    """
    rows, variance = find_principal_axes(state, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = choose_signs(rows, reference)
    seen = _find_seen_entries(state)
    total_variance = state.total_variance
    # If no entry was ever missing, Σ cannot have negative eigenvalues. A state that was restored from a model has no
    # `missing`, but still has `known`.
    had_gaps = state.missing is not None or state.known is not None
    if had_gaps:
        raised, total_variance = _raise_small_variances(state)  # raised to the estimated error of the eigenvalues of Σ
        count = min(len(raised), components)  # there may be more components than columns: then the rest has variance 0
        variance[:count] = raised[:count]
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


def _raise_small_variances(state: State) -> tuple[F64, float]:
    """If Σ has negative eigenvalues, raise small variances; return the variances by falling size, and their total.

    The variances are those of the columns or, if they were raised, of all seen dimensions. If they were not raised, the
    total is the total variance of the state.

    The variances of the columns are the largest eigenvalues of Σ, and the total variance is the sum of all eigenvalues.
    If the columns have more variance than the total, the eigenvalues in the other directions are negative on average.
    The true eigenvalues are not negative. So the mean negative eigenvalue estimates the error of all eigenvalues, and a
    variance that is smaller than this error is raised to the error. Otherwise any new message would be very unusual
    along its axis. Dimensions that no message has shown are left out.
    """
    dimensions = state.seen_dimensions
    variance = state.variance[:dimensions]
    total_variance = state.total_variance
    excess = float(variance.sum()) - total_variance
    if excess <= 0 or len(variance) == dimensions:
        return variance, total_variance
    error = excess / (dimensions - len(variance))  # the mean eigenvalue of the other directions is −error
    raised = np.full(dimensions, error)
    raised[: len(variance)] = np.maximum(variance, error)
    return raised, float(raised.sum())


def compute_continuation(state: State, model_total_variance: float) -> F32:
    """Return what a model must keep of its state so that learning can continue: DΣD, packed, or [C | F] (d, r).

    DΣD is divided by the total variance of the model, and [C | F] by the root of this variance. D is one over the
    standard deviations if the stream is standardised, otherwise 1.
    """
    divisor = model_total_variance or 1.0  # without variance, DΣD and [C | F] are 0: any divisor will do
    if state.covariance is None:
        return np.asarray(state.C / np.sqrt(divisor), np.float32)
    d = len(state.mean)
    covariance = triangle.unpack(state.covariance, d, state.scale)  # DΣD
    packed = covariance[np.tril_indices(d)]
    return np.asarray(packed / divisor, np.float32)


def restore_state(
    model: Model, continuation: Array | None, known: F64 | None, count: int, config: LearningConfig
) -> State:
    """Restore the state from which learning continues after a model of `count` messages.

    `continuation` is what `compute_continuation` has returned: DΣD, packed, divided by the total variance of the model
    or, if Σ is not kept, [C | F], divided by the root of this variance. `known` is the share of the weight for which
    each pair of entries was known; if Σ is not kept, each entry.

    A model that a worker has published has no continuation: `continuation` and `known` are None. Then the covariance is
    made from the axes of the model and, if Σ is kept, from the model's noise in all other directions. Each dimension
    that was ever seen counts as known for all of the weight.
    """
    d = model.dimensions
    seen = np.ones(d) if model.seen is None else model.seen.astype(np.float64)
    known_shares = known
    if continuation is None and model.seen is not None:
        known_shares = np.outer(seen, seen)[np.tril_indices(d)] if config.keeps_covariance else seen
    state = State(
        C=np.zeros((d, 0)),
        mean=model.mean.astype(np.float64),
        weight=model.weight,
        total_variance=model.total_variance,
        count=count,
        concentration=1 / max(model.weight, 1.0),  # the sum of n squared shares 1/n², as if n messages counted alike
        scale=model.scale,
        known=known_shares,
    )
    if config.keeps_covariance:
        return _restore_covariance(state, model, continuation, seen, config)
    return _restore_factor(state, model, continuation, config)


def _restore_factor(state: State, model: Model, continuation: Array | None, config: LearningConfig) -> State:
    """If Σ is not kept, return the state with [C | F], from `continuation` or from the axes of the model.

    `continuation` is [C | F] (d, r), divided by the root of the total variance.
    """
    if continuation is None:
        C = model.components.T.astype(np.float64) * np.sqrt(model.explained_variance)
    else:
        C = continuation * np.sqrt(state.total_variance)
    has_variance = np.square(C).sum(axis=0) > 0
    C = np.ascontiguousarray(C[:, has_variance], config.dtype)
    variances = None
    if model.scale is not None:
        # Standardised, an entry has the variance 1, or 0 if it is constant. Divided by D², this is in the data's units.
        variances = _find_standardised_variances(C, model.scale) / model.scale**2
    return replace(state, C=C, variances=variances)


def _restore_covariance(
    state: State, model: Model, continuation: Array | None, seen: F64, config: LearningConfig
) -> State:
    """If Σ is kept, return the state with Σ, and with the columns [C | F] from Σ.

    `state` was made from the model, and so has the total variance t of the model. `continuation` is a part of the
    model's file: DΣD/t, packed. D is one over the standard deviations if the stream is standardised, otherwise 1. If
    `continuation` is None, DΣD is taken from probabilistic PCA: the explained variance along the axes, and the noise in
    all other directions. `seen` (d,) is 1 for each dimension that was seen, and 0 for the rest.
    """
    d = model.dimensions
    if continuation is None:
        U = model.components.T.astype(np.float64)
        # If the model has no variance, its `noise_variance` is the smallest positive number, so that scores do not
        # divide by 0. Here, that number would become a variance in Σ, and learning would divide by its root.
        noise = model.noise_variance if model.total_variance > 0 else 0.0
        covariance = noise * np.diag(seen) + (U * (model.explained_variance - noise)) @ U.T
        if model.scale is not None:  # variances of standardised entries are known: 1, or 0 for a constant entry
            learned_axes = U[:, model.explained_variance > 0]  # axes without variance have arbitrary directions
            np.fill_diagonal(covariance, _find_standardised_variances(learned_axes, model.scale))
    else:
        covariance = triangle.unpack(continuation * np.float64(state.total_variance), d)
        trace = float(covariance.trace())
        # The state from which the model was made had the trace of DΣD as its total variance. The model has a larger
        # total variance t if DΣD has negative eigenvalues, because `_raise_small_variances` has then raised variances.
        # If no variance was raised, t and the trace differ only by rounding: `continuation` is in single precision.
        has_negative_eigenvalues = trace < (1 - _ROUNDING) * state.total_variance
        if has_negative_eigenvalues:
            state = replace(state, total_variance=trace)
    covariance /= np.outer(model.D, model.D)  # DΣD becomes Σ, which a state keeps
    state = replace(state, covariance=covariance[np.tril_indices(d)])
    return replace(state, C=decompose(state, config.columns).C.astype(config.dtype))


def _find_standardised_variances(C: Array, scale: F64) -> F64:
    """Return the variance of each standardised entry, (d,): 0 for a constant entry, otherwise 1.

    A constant entry has no standard deviation to divide by, so its scale is 1. An entry whose standard deviation
    happens to be 1 also has the scale 1, but its row of C (d, r) is not 0.
    """
    has_variance = np.abs(C).max(axis=1, initial=0.0) > 1e-6  # smaller numbers are taken as rounding
    return np.asarray((scale != 1) | has_variance, np.float64)
