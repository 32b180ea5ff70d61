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
    """If a state keeps its covariance Σ, compute `State.C` from Σ: the leading axes, `columns` at most.

    Each axis is multiplied by its standard deviation. If the stream is standardised, these are the axes of the
    standardised entries. A state that does not keep Σ has only axes, and is returned as it is.
    """
    if state.covariance is None:
        return state
    limits = ritz.Limits(
        columns=columns,
        smallest_variance_share=ritz.RANK_TOLERANCE,
        smallest_deviation=float(np.sqrt(np.finfo(np.float64).tiny)),  # squares of smaller numbers underflow
    )
    covariance = _unpack_standardised(state.covariance, state)
    return replace(state, C=ritz.decompose_covariance(covariance, limits))


def adapt_columns(state: State, config: LearningConfig) -> State:
    """If a state keeps Σ, compute from Σ the columns [C | F] that `config` asks for, and store them in `State.C`.

    If `config` keeps Σ, the state keeps Σ, too. If not, the state keeps the following instead of Σ:

    - if the stream is standardised, the variance of each entry
    - if entries were missing, the share of the weight for which each entry has been known
    """
    if state.covariance is None:
        return state
    CF = ritz.decompose_covariance(_unpack_standardised(state.covariance, state), config.limits)
    state = replace(state, C=CF.astype(config.dtype))  # `State.C` holds all columns, [C | F]
    if config.keeps_covariance:
        return state
    is_standardised = state.scale is not None
    return replace(
        state,
        covariance=None,
        variances=state.entry_variances if is_standardised else None,
        known=None if state.known is None else state.known_shares,  # None: all entries were always known
    )


def _unpack_standardised(covariance: F64, state: State) -> F64:
    """Return the packed Σ of a state as a square (d, d); if the stream is standardised, of standardised entries."""
    return triangle.unpack(covariance, len(state.mean), state.scale)


def find_principal_axes(state: State, k: int) -> tuple[F64, F64]:
    """Return the k leading axes of a state, as orthonormal rows (k, d), and their variances.

    If the state has fewer than k axes, the remaining ones are arbitrary, with variance 0.
    """
    # The columns of C are axes times standard deviations, and are orthogonal only up to rounding.
    learned_axes = np.asarray(ritz.orthonormalise(state.C[:, :k].astype(np.float64)), np.float64)
    learned_variance = state.variance[:k]  # fewer if the state has fewer axes
    variance = np.zeros(k)
    variance[: len(learned_variance)] = learned_variance
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
    # Without a reference, the rows are compared with the d unit vectors. The similarities are then the rows' entries.
    similarity = components if reference is None else components @ reference.T
    most_similar = np.abs(similarity).argmax(axis=1)
    similarity_to_most_similar = similarity[np.arange(len(similarity)), most_similar]
    signs = np.where(similarity_to_most_similar < 0, -1.0, 1.0)
    return components * signs[:, None]


def make_model(state: State, components: int, reference: Array | None = None) -> Model:
    """Make the model of a state, with `components` leading axes.

    The axes get the signs of a `reference` with the same dimensions.
    """
    leading_axes, variance = find_principal_axes(state, components)
    if reference is not None and reference.shape[1] == leading_axes.shape[1]:
        leading_axes = choose_signs(leading_axes, reference)
    total_variance = state.total_variance
    if state.had_gaps:
        # Σ may have negative eigenvalues, because the covariance of each pair was estimated separately. Then variances
        # that are smaller than their error are raised to the error, and the total variance is the sum after raising.
        floored_variances, total_variance = _floor_variances_at_error(state)
        axis_count = min(len(floored_variances), components)  # a state may have fewer axes than `components`
        variance[:axis_count] = floored_variances[:axis_count]
    return Model(
        components=leading_axes,
        explained_variance=variance,
        mean=state.mean,
        total_variance=total_variance,
        weight=state.weight,
        scale=state.scale,
        seen=_find_seen_entries(state),
    )


def _find_seen_entries(state: State) -> NDArray[np.bool_] | None:
    """Return which entries were observed in some message, (d,), or None if all were."""
    known_shares = state.known_shares  # of the weight
    return None if known_shares.min() > 0 else known_shares > 0


def _floor_variances_at_error(state: State) -> tuple[F64, float]:
    """Return the variances along the axes and their total. If Σ has negative eigenvalues, both are corrected.

    A state has the variances λ along its r axes. The other d − r eigenvalues of Σ have this mean:

        (total variance − sum of λ) / (d − r)

    A true variance is never negative. So if the mean is negative, −mean is taken as the error of every eigenvalue. A
    smaller variance cannot be told from 0, so d variances are returned, each raised at least to the error. If the mean
    is not negative, the r variances are returned as they are.
    """
    dimensions = state.seen_dimensions  # entries that were never observed have no variance
    variance = state.variance[:dimensions]
    total_variance = state.total_variance
    other_directions = dimensions - len(variance)
    sum_of_other_eigenvalues = total_variance - float(variance.sum())
    if sum_of_other_eigenvalues >= 0 or not other_directions:
        return variance, total_variance
    error = -sum_of_other_eigenvalues / other_directions
    floored = np.full(dimensions, error)
    floored[: len(variance)] = np.maximum(variance, error)
    return floored, float(floored.sum())


def compute_covariance_or_axes(state: State, model_total_variance: float) -> F32:
    """Return what a model's file saves of the covariance, so that learning can continue after the model.

    If the state keeps Σ, this is Σ/t as a packed triangle (d(d + 1)/2,). If the stream is standardised, Σ is converted
    to the covariance of the standardised entries. If the state does not keep Σ, this is [C | F]/√t (d, r). t is the
    total variance of the model: with the division, the numbers fit into float32 in any unit of the data.
    """
    t = model_total_variance or 1.0  # 1 for a stream without variance
    if state.covariance is None:
        return np.asarray(state.C / np.sqrt(t), np.float32)  # `state.C` holds all columns, [C | F]
    square = _unpack_standardised(state.covariance, state)
    packed = square[np.tril_indices(len(state.mean))]
    return np.asarray(packed / t, np.float32)


def restore_state(
    model: Model, covariance_or_axes: Array | None, known_shares: F64 | None, count: int, config: LearningConfig
) -> State:
    """Restore the state from which learning continues after a model of `count` messages.

    `covariance_or_axes` is from `compute_covariance_or_axes`. A worker's model does not save it: then the covariance is
    estimated from the model's axes and noise.

    `known_shares` are the shares of the weight for which entries have been known: of each entry, (d,), if the state
    does not keep Σ, and of each pair of entries, as a packed triangle like Σ, if the state keeps Σ. None means that all
    shares are 1.
    """
    d = model.dimensions
    is_seen = np.ones(d, np.bool_) if model.seen is None else model.seen  # entries observed in some message
    is_worker_model = covariance_or_axes is None
    if is_worker_model and model.seen is not None:
        # A worker's model does not save `known_shares`, so the shares are 1 for observed entries, and 0 for all others.
        known_shares = is_seen.astype(np.float64)
        if config.keeps_covariance:  # a pair of entries is known if both entries are
            known_shares = find_smaller_of_each_pair(known_shares)
    state = State(
        C=np.zeros((d, 0)),
        mean=model.mean.astype(np.float64),
        weight=model.weight,
        total_variance=model.total_variance,
        count=count,
        concentration=1 / max(model.weight, 1.0),  # sum of the messages' squared shares of the weight, if all are equal
        scale=model.scale,
        known=known_shares,
    )
    if config.keeps_covariance:
        return _restore_covariance(state, model, covariance_or_axes, is_seen, config)
    return _restore_columns(state, model, covariance_or_axes, config)


def _restore_columns(state: State, model: Model, saved_columns: Array | None, config: LearningConfig) -> State:
    """Return the state with all its columns, [C | F], in `State.C`.

    `saved_columns` is [C | F], divided by the root of the total variance. If no columns were saved, the model's axes
    become C, and F is empty.
    """
    if saved_columns is None:
        columns = model.components.T.astype(np.float64) * np.sqrt(model.explained_variance)
    else:
        columns = saved_columns * np.sqrt(state.total_variance)
    has_variance = np.square(columns).sum(axis=0) > 0
    columns = np.ascontiguousarray(columns[:, has_variance], config.dtype)
    variances = None
    if model.scale is not None:
        # The state keeps the variances of the data, which a model does not have. They follow from the scale, which
        # is 1/standard deviation. A constant entry also has a scale, 1, but no variance.
        standardised_variances = _find_standardised_variances(columns, model.scale)  # 0 for a constant entry, else 1
        variances = standardised_variances / model.scale**2
    return replace(state, C=columns, variances=variances)


def _restore_covariance(
    state: State, model: Model, saved_covariance: Array | None, is_seen: NDArray[np.bool_], config: LearningConfig
) -> State:
    """Return the state with Σ, and with the columns [C | F] in `State.C`.

    `saved_covariance` is Σ divided by the model's total variance, packed. If Σ was not saved, Σ is estimated from the
    model by probabilistic PCA. `is_seen` (d,) tells which entries some message has shown.
    """
    d = model.dimensions
    if saved_covariance is None:
        standardised_covariance = _make_covariance(model, is_seen)
    else:
        packed_covariance = saved_covariance.astype(np.float64) * model.total_variance
        standardised_covariance = triangle.unpack(packed_covariance, d)
        state = replace(state, total_variance=_restore_total_variance(model, standardised_covariance))
    # Convert to the units of the data: D is 1/standard deviation of each entry, or 1 if not standardised.
    covariance = standardised_covariance / np.outer(model.D, model.D)
    state = replace(state, covariance=covariance[np.tril_indices(d)])
    return replace(state, C=decompose(state, config.columns).C.astype(config.dtype))


def _restore_total_variance(model: Model, covariance: F64) -> float:
    """Return the total variance of the state from which a model was made: the trace of the state's Σ (d, d).

    If Σ has negative eigenvalues, `make_model` has raised the smallest variances to their error, so the model's total
    variance is greater than the trace. Otherwise the model's total variance is returned, because the trace of the saved
    Σ is only equal to it up to rounding.
    """
    trace = float(covariance.trace())
    was_raised = trace < (1 - _ROUNDING) * model.total_variance
    return trace if was_raised else model.total_variance


def _make_covariance(model: Model, is_seen: NDArray[np.bool_]) -> F64:
    """Estimate the covariance (d, d) of a stream from its model, by probabilistic PCA.

    All entries that some message has shown get the same noise variance. Along the model's axes, the covariance gets the
    model's variances.
    """
    U = model.components.T.astype(np.float64)
    # The noise variance of a model is never 0. A stream without variance must get a covariance of 0.
    noise = model.noise_variance if model.total_variance > 0 else 0.0
    covariance = noise * np.diag(is_seen) + (U * (model.explained_variance - noise)) @ U.T
    if model.scale is not None:
        # The diagonal is known exactly: a standardised entry has the variance 1, or 0 if it is constant.
        axes_with_variance = U[:, model.explained_variance > 0]  # the direction of all other axes is arbitrary
        np.fill_diagonal(covariance, _find_standardised_variances(axes_with_variance, model.scale))
    return np.asarray(covariance)


def _find_standardised_variances(axes: Array, scale: F64) -> F64:
    """Return the variance of each standardised entry, (d,): 0 for a constant entry, otherwise 1.

    A constant entry has the scale 1 and a row of zeros in the axes (d, r). An entry that varies may by chance have one
    of the two, but practically never both.
    """
    is_on_axes = np.abs(axes).max(axis=1, initial=0.0) > 1e-6
    has_variance = (scale != 1) | is_on_axes
    return np.asarray(has_variance, np.float64)
