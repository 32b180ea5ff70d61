"""One block in plain NumPy: what `learning` computes, message by message, in the order of docs/mathematics.md.

Start reading here. A test compares the two block for block.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca import algorithm1, block_step
from streampca.pca.arrays import F64
from streampca.pca.blocked import triangle
from streampca.pca.blocked.block import RANDOM_SUM_COUNT, draw_sums_and_signs
from streampca.pca.blocked.centring import LARGEST_SHARE, SMALLEST_REACH, UNCLIPPED_MESSAGES
from streampca.pca.learning_config import LearningConfig
from streampca.pca.state import Losses, State


class Block(NamedTuple):
    """The messages of a block, standardised and filled (sections 11 and 13), and their weights (section 3)."""

    V: F64  # (B, d), in units of D
    fits: F64  # (B, d): what the axes predict of each message; the mean without gaps
    shown: NDArray[np.bool_]  # (B, d)
    mean: F64  # (d,), before the block, in units of D
    origin: F64  # (d,): subtracted before standardising
    D: F64  # (d,)
    before: F64  # (B,): the weight before each message
    eta: F64  # (B,): 1/weight with each message
    a: F64  # (B,): eta; 0 without centring
    c: F64  # (B,): shares of the messages at the end of the block
    past: float  # share of everything before the block, at its end
    missing: F64 | None  # (d,): share of messages that lack each entry
    has_gaps: bool  # in this block or before

    @property
    def rows_of_fits(self) -> tuple[F64, F64]:
        """The fits about the mean, and the residuals, (B, d) each."""
        return self.fits - self.mean, self.V - self.fits


class Learned(NamedTuple):
    """The results of learning a block by Algorithm 1."""

    rows: F64  # (B, d): √c·y
    C: F64  # (d, k)
    mean: F64  # (d,), in units of D
    total_variance: float
    concentration: float
    kept: F64  # (B,): the share of each message that clipping leaves
    losses: Losses


class MeanStep(NamedTuple):
    """How a block with gaps changes the means of the entries, (d,) each."""

    difference: F64  # the mean of the block, less the mean before it
    replaced: F64  # the share of the moments of each entry that the block replaces
    known: F64  # the diagonal of N after the block


class CovarianceStep(NamedTuple):
    """How a block with gaps changes Σ."""

    covariance: F64  # (d, d), after the block
    moved: F64  # (d,): how far the mean moves
    known: F64  # (d, d): N after the block


class Predictor(NamedTuple):
    """Predicts entries from other entries by ridge regression."""

    C: F64  # (d, k)
    ridge: F64  # (k,): σ²λ/(λ − σ²)


def learn_block(state: State, V: F64, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (B, d) that is not the first; `retention` (B,) holds each message's ρ."""
    block = prepare(state, V, retention, config)
    learned = learn_messages(state, block, config)
    after = replace(
        state,
        mean=block.origin + learned.mean / block.D,
        weight=block.before[-1] + 1,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=learned.concentration,
        clipped=state.clipped + int(np.sum(learned.kept < 1)),
        missing=block.missing,
    )
    update = update_covariance if config.keeps_covariance else update_factor
    return update(state, after, block, learned, config), learned.losses


def prepare(state: State, V: F64, retention: F64, config: LearningConfig) -> Block:
    """Compute the weights of the messages V (B, d), standardise them, and fill missing entries."""
    d = config.dimensions
    V = clip_first_outliers(state, V)
    mean = start_means(state, V) if config.impute else state.mean
    origin = mean if config.standardize else np.zeros(d)
    D = choose_scale(state, V, mean) if config.standardize else np.ones(d)
    V = D * (V - origin)
    mean = D * (mean - origin)
    before = compute_weights_before(state.weight, retention)
    eta = 1 / (before + 1)
    c = eta * np.append(np.cumprod((1 - eta)[::-1])[::-1][1:], 1.0)
    past = float(1 - c.sum())
    shown = ~np.isnan(V)
    fits = np.tile(mean, (len(V), 1))
    missing = None if state.missing is None else past * state.missing
    if not shown.all():
        missing = (0.0 if missing is None else missing) + c @ ~shown
        C = state.C[:, : config.components].astype(np.float64)
        total_variance = max(state.total_variance, float(np.square(state.C).sum()))
        fits = compute_fits(V, mean, C, total_variance, count_seen_entries(state))
        V = np.where(shown, fits + (V - fits) / compute_root_shares(shown, c), fits)
    return Block(
        V=V,
        fits=fits,
        shown=shown,
        mean=mean,
        origin=origin,
        D=D,
        before=before,
        eta=eta,
        a=eta if config.center else np.zeros(len(V)),
        c=c,
        past=past,
        missing=missing,
        has_gaps=not shown.all() or state.known is not None,
    )


def learn_messages(state: State, block: Block, config: LearningConfig) -> Learned:
    """Learn the messages one by one by Algorithm 1 (section 1)."""
    C = state.C[:, : config.components].astype(np.float64)
    S = np.linalg.inv(C.T @ C)
    mean = block.mean
    total_variance = state.total_variance
    kappa = state.concentration
    age = unpack_known(state).diagonal()[block.shown.any(axis=0)].min(initial=1.0)  # of the newest entry
    n = len(block.V)
    Y = np.empty(block.V.shape)
    kept = np.ones(n)
    residual = np.empty(n)
    norm = np.empty(n)
    for s, v in enumerate(block.V):
        y = v - mean
        unbiased = 1 - kappa if config.center else 1.0
        limit = max(LARGEST_SHARE * block.before[s] * age, SMALLEST_REACH) * total_variance / unbiased  # section 5
        if y @ y > limit > 0 and state.count + s >= UNCLIPPED_MESSAGES:
            kept[s] = np.sqrt(limit / (y @ y))
        y = y * kept[s]
        norm[s] = y @ y  # section 9
        residual[s] = y @ y - np.sum((np.linalg.qr(C)[0].T @ y) ** 2)  # ‖r‖²
        mean = mean + block.a[s] * y  # section 3
        Y[s] = np.sqrt(1 - block.a[s]) * y
        eta = block.eta[s]
        total_variance = (1 - eta) * total_variance + eta * (Y[s] @ Y[s])
        kappa = (1 - eta) ** 2 * kappa + eta**2
        C, S, _ = algorithm1.sherman_morrison(C, S, Y[s], eta)
    return Learned(
        rows=np.sqrt(block.c)[:, None] * Y,
        C=C,
        mean=mean,
        total_variance=total_variance,
        concentration=kappa,
        kept=kept,
        losses=Losses(residual=np.clip(residual, 0, norm), norm=norm),
    )


def update_covariance(state: State, after: State, block: Block, learned: Learned, config: LearningConfig) -> State:
    """If Σ is kept, add the block to it (section 4), and find the next [C | F]."""
    d = config.dimensions
    units = np.outer(block.D, block.D)
    rows = learned.rows
    before = triangle.unpack(state.covariance, d)  # type: ignore[arg-type]
    covariance = block.past * before + rows.T @ rows / units  # in the units of the data, as a state keeps it
    if block.has_gaps:
        step = learned.mean - block.mean
        moments = rows.T @ rows + np.outer(step, step)
        fits, residuals = (learned.kept[:, None] * part for part in block.rows_of_fits)
        changed = add_block_with_gaps(
            before=before * units,
            known_before=unpack_known(state),
            moments=moments,
            step=step,
            fits=fits,
            residuals=residuals,
            shown=block.shown,
            c=block.c,
            past=block.past,
            predictor=make_predictor(state, config.components),
            is_clipped=bool((learned.kept < 1).any()),
        )
        covariance = changed.covariance / units
        known = none_if_all_known(changed.known[np.tril_indices(d)])
        after = replace(after, mean=move_mean(block, changed.moved, config), known=known)
    next_D = invert_deviations(covariance.diagonal()) if config.standardize else block.D
    standardised = covariance * np.outer(next_D, next_D)
    random_sums = combine_rows(rows)
    random_sums = random_sums[:, ::2] + random_sums[:, 1::2]
    start = np.hstack([learned.C, state.C[:, config.components :], random_sums]) * (next_D / block.D)[:, None]
    return replace(
        after,
        C=axes_within(standardised, standardised @ normalise_columns(start))[:, : config.columns],
        covariance=covariance[np.tril_indices(d)],
        total_variance=float(np.trace(standardised)),
        scale=next_D if config.standardize else None,
    )


def update_factor(state: State, after: State, block: Block, learned: Learned, config: LearningConfig) -> State:
    """If Σ is not kept, find the next [C | F]. The past has the variance `outside` in all directions (section 4)."""
    d = config.dimensions
    D = block.D
    past = block.past
    rows = learned.rows
    squares = np.square(rows).sum(axis=0)
    before = np.zeros(d) if state.variances is None else state.variances
    variances = past * before + squares / D**2
    if block.has_gaps:
        step = learned.mean - block.mean
        fits = learned.kept[:, None] * (block.fits - block.mean)
        known_before = unpack_known(state).diagonal()
        mean_step = compute_mean_step(known_before, step, fits, block.shown, block.c, past)
        moved = mean_step.replaced * mean_step.difference
        moments = (squares + np.square(step)) / (1 - past) / D**2
        variances = before + mean_step.replaced * (moments - before) - np.square(moved / D)
        after = replace(after, mean=move_mean(block, moved, config), known=none_if_all_known(mean_step.known))
    outside = compute_variance_outside(state)
    U = normalise_columns(state.C.astype(np.float64))
    covariance = past * (state.C @ state.C.T - outside * U @ U.T) + rows.T @ rows
    start = np.hstack([learned.C, state.C[:, config.components :], combine_rows(rows)])
    ratio = np.ones(d)
    if config.standardize:
        next_D = invert_deviations(variances)
        ratio = next_D / D
        covariance = covariance * np.outer(ratio, ratio)
        start = start * ratio[:, None]
        total_variance = float(np.sum(next_D**2 * variances))
        after = replace(after, variances=variances, scale=next_D, total_variance=total_variance)
    basis = np.eye(d)
    has_little = after.count <= block_step.EXACT_UP_TO_MESSAGES or state.rank + len(rows) <= block_step.EXACT_UP_TO_ROWS
    if not has_little and past >= block_step.EXACT_BELOW_PAST_SHARE and state.rank >= config.components:
        covariance, basis = approximate_covariance(covariance, start)
    CF = axes_within(covariance, basis)[:, : config.columns]
    variance = np.square(CF).sum(axis=0) + past * outside * np.median(np.square(ratio))
    return replace(after, C=normalise_columns(CF) * np.sqrt(variance))


def move_mean(block: Block, moved: F64, config: LearningConfig) -> F64:
    """The mean after a block with gaps, in the units of the data; `moved` (d,) is in units of D."""
    return block.origin + (block.mean + moved * config.center) / block.D


def none_if_all_known(known: F64) -> F64 | None:
    """N as a state keeps it: None if all shares are 1."""
    return None if (known > 1 - 1e-9).all() else known


def compute_variance_outside(state: State) -> float:
    """The mean variance of the directions that the columns leave out, at most that of the shortest column."""
    directions = count_seen_entries(state) - state.rank
    variance = np.square(state.C).sum(axis=0)
    if not directions or not state.rank:
        return 0.0
    return float(min(max((state.total_variance - variance.sum()) / directions, 0.0), variance.min()))


def compute_weights_before(w: float, retention: F64) -> F64:
    """ρw of each message (B,): the weight of all messages before it."""
    before = np.empty(len(retention))
    for s, rho in enumerate(retention):
        before[s] = rho * w
        w = before[s] + 1.0
    return before


def clip_first_outliers(state: State, V: F64) -> F64:
    """Clip each entry of V (B, d) that no message has shown before to ten median distances from its median."""
    V = V.copy()
    for j in np.flatnonzero(unpack_known(state).diagonal() <= 0):
        values = V[~np.isnan(V[:, j]), j]
        if not len(values):
            continue
        median = np.median(values)
        distances = np.abs(values - median)[values != median]
        if len(distances):
            limit = 10 * np.median(distances)
            V[:, j] = np.clip(V[:, j], median - limit, median + limit)
    return V


def start_means(state: State, V: F64) -> F64:
    """The mean (d,); for entries that the block V (B, d) is the first to show, it is their mean in the block."""
    begins = (unpack_known(state).diagonal() <= 0) & ~np.isnan(V).all(axis=0)
    return np.where(begins, average_shown(V), state.mean)


def unpack_known(state: State) -> F64:
    """N (d, d), the share of the weight since two entries were seen; without Σ only its diagonal counts."""
    d = len(state.mean)
    if state.known is None:
        return np.ones((d, d))
    return np.diag(state.known) if len(state.known) == d else triangle.unpack(state.known, d)


def count_seen_entries(state: State) -> int:
    """The number of entries that were ever seen: only these have variance."""
    return int(np.sum(unpack_known(state).diagonal() > 0))


def compute_root_shares(shown: NDArray[np.bool_], c: F64) -> F64:
    """√q (d,), where q is the share of the block's messages that have an entry."""
    return np.asarray(np.sqrt(np.maximum(c @ shown / c.sum(), 0.1)))


def compute_replaced_share(known: F64, weight: F64, past: float) -> tuple[F64, F64]:
    """The share of the moments that a block replaces, and N after it, for entries or pairs shown with this weight."""
    counted = np.minimum(1 - past, weight / 0.1)
    is_kept = (weight <= 0) & (known > 0)
    known_after = past * known + np.where(is_kept, 1 - past, counted)
    return counted / np.where(known_after > 0, known_after, 1.0), known_after


def invert_weights(weights: F64) -> F64:
    """1/weight; 0 for a weight of 0."""
    return np.where(weights > 0, 1 / np.maximum(weights, 1e-300), 0.0)


def compute_mean_step(known: F64, step: F64, fits: F64, shown: NDArray[np.bool_], c: F64, past: float) -> MeanStep:
    """How a block changes the means: each is the mean of the fits, plus that of the residuals where they are shown.

    `step` (d,) is how far the mean of the rows moves. The rows hold r/√q for each residual r.
    """
    weight = c @ shown
    sum_of_fits = c @ fits
    mean_residuals = (step - sum_of_fits) * (compute_root_shares(shown, c) * invert_weights(weight))
    difference = sum_of_fits / (1 - past) + mean_residuals
    replaced, known_after = compute_replaced_share(known, weight, past)
    return MeanStep(difference=np.where(weight > 0, difference, 0.0), replaced=replaced, known=known_after)


def add_block_with_gaps(
    before: F64, known_before: F64, moments: F64, step: F64, fits: F64, residuals: F64, shown: NDArray[np.bool_],
    c: F64, past: float, predictor: Predictor, is_clipped: bool,
) -> CovarianceStep:  # fmt: skip
    """Add a block to Σ (`before`) by the steps of gaps.py; the rows have the second `moments` (d, d)."""
    eta = 1 - past
    # Step 1: the block's mean of each product of two entries.
    root = compute_root_shares(shown, c)
    pair_weights = (c[:, None] * shown).T @ shown
    FF = (c[:, None] * fits).T @ fits
    FR = (c[:, None] * fits).T @ residuals
    RR = (moments - FF - FR - FR.T) * np.outer(root, root)
    per_residual = root * invert_weights(pair_weights.diagonal())
    block_moments = FF / eta + FR * per_residual + FR.T * per_residual[:, None] + RR * invert_weights(pair_weights)
    # Steps 2 and 3: weights, and changes without predictions.
    replaced, known = compute_replaced_share(known_before, pair_weights, past)
    change = replaced * (block_moments - before)
    mean_step = compute_mean_step(known_before.diagonal(), step, fits, shown, c, past)
    moved = mean_step.replaced * mean_step.difference
    # Step 4: predictions of the other entries from the ordinary ones.
    is_ordinary = (mean_step.replaced > 0) & (mean_step.replaced <= 1.5 * eta)
    if is_ordinary.any() and not is_ordinary.all():
        is_dead = (mean_step.replaced <= 0) & (known_before.diagonal() > 0)
        # If messages were clipped, the variances of dead sensors grow by no more than their rows have.
        largest_growth = moments.diagonal()[is_dead].sum() if is_clipped else np.inf
        predicted_change, predicted_moved = predict_changes(
            predictor, is_ordinary, change, moved, is_dead, largest_growth
        )
        change = change + (known_before > 0) * (1 - replaced / eta) * predicted_change
        moved = moved + (known_before.diagonal() > 0) * (1 - mean_step.replaced / eta) * predicted_moved
    # Step 5: the covariance about the new mean, with correlations cut to ±1.
    covariance = before + change - np.outer(moved, moved)
    variances = covariance.diagonal().clip(0)
    largest = np.sqrt(np.outer(variances, variances))
    return CovarianceStep(covariance=np.clip(covariance, -largest, largest), moved=moved, known=known)


def predict_changes(
    predictor: Predictor,
    is_ordinary: NDArray[np.bool_],
    change: F64,
    moved: F64,
    is_dead: NDArray[np.bool_],
    largest_growth: float,
) -> tuple[F64, F64]:
    """The changes of Σ (d, d) and of the mean (d,) that follow from the changes of ordinary entries; 0 for these."""
    C = predictor.C
    C_L = C[is_ordinary]
    ordinary_pairs = np.ix_(is_ordinary, is_ordinary)
    to_x = np.linalg.inv(C_L.T @ C_L + np.diag(predictor.ridge)) @ C_L.T  # coordinates x from ordinary entries
    to_entries = C @ to_x
    to_entries[is_ordinary] = np.eye(is_ordinary.sum())
    predicted_change = to_entries @ change[ordinary_pairs] @ to_entries.T
    predicted_moved = to_entries @ moved[is_ordinary]
    predicted_change[ordinary_pairs] = 0.0
    predicted_moved[is_ordinary] = 0.0
    growth = predicted_change.diagonal()[is_dead].clip(0).sum()
    if growth > largest_growth:
        predicted_change *= largest_growth / growth
    # ‖x‖², which is K on average, is limited to 30 times as much.
    limit = SMALLEST_REACH * C.shape[1]
    predicted_change *= limit / max(limit, np.trace(to_x @ change[ordinary_pairs] @ to_x.T))
    predicted_moved *= np.sqrt(limit / max(limit, np.sum(np.square(to_x @ moved[is_ordinary]))))
    return predicted_change, predicted_moved


def make_predictor(state: State, k: int) -> Predictor:
    """The predictor of missing entries by the k leading columns of a state."""
    C = state.C[:, :k].astype(np.float64)
    variance = np.square(C).sum(axis=0)
    total = max(state.total_variance, np.square(state.C).sum())  # of an indefinite Σ, columns have more than its trace
    noise = max((total - variance.sum()) / (count_seen_entries(state) - k), 1e-10 * variance.max())
    is_constant = np.abs(C) <= 1e-14 * np.abs(C).max()
    return Predictor(C=np.where(is_constant, 0.0, C), ridge=noise / (1 - noise / variance))


def average_shown(V: F64) -> F64:
    """The mean of the entries that are not missing (d,); 0 without any."""
    shown = ~np.isnan(V)
    return np.asarray(np.where(shown, V, 0.0).sum(axis=0) / np.maximum(shown.sum(axis=0), 1))


def choose_scale(state: State, V: F64, mean: F64) -> F64:
    """D (d,) of the state; for an entry that was constant so far, by the values in V (B, d) that are not its mean."""
    differing_squares = np.where(mean == V, np.nan, np.square(V - mean))
    return np.where(state.entry_variances > 0, state.scale, invert_deviations(average_shown(differing_squares)))


def invert_deviations(variance: F64) -> F64:
    """D (d,) by the variances of entries; 1 for a constant one."""
    return np.asarray(1 / np.sqrt(np.where(variance > 0, variance, 1.0)))


def compute_fits(V: F64, mean: F64, C: F64, total_variance: float, seen: int | None = None) -> F64:
    """Predict all entries of V (B, d) from the observed ones by probabilistic PCA with the axes C (d, k).

    ‖x‖² is clipped to k + √2k. Only the entries that were `seen` have noise; None: all entries.
    """
    d, k = C.shape
    variance = np.square(C).sum(axis=0)
    noise = max((total_variance - variance.sum()) / ((seen or d) - k), 1e-10 * variance.max())
    C = np.where(np.abs(C) > 1e-14 * np.abs(C).max(), C, 0.0)  # of constant entries
    W = C * np.sqrt(1 - noise / variance)
    sigma = W @ W.T + noise * np.eye(d)
    fits = np.empty(V.shape)
    largest_square = k + np.sqrt(2 * k)  # of x
    for fit, v in zip(fits, V, strict=True):
        observed = ~np.isnan(v)
        z = W[observed].T @ np.linalg.solve(sigma[np.ix_(observed, observed)], v[observed] - mean[observed])
        x = z * np.sqrt(1 - noise / variance)
        fit[:] = mean + W @ z * min(1.0, np.sqrt(largest_square / (x @ x)))
    return fits


def combine_rows(rows: F64) -> F64:
    """Sums of the rows (B, d) with fixed random signs, as columns (d, RANDOM_SUM_COUNT)."""
    column, sign = draw_sums_and_signs(len(rows)).T
    return np.asarray(rows.T @ (np.eye(RANDOM_SUM_COUNT)[column] * sign[:, None]))


def normalise_columns(A: F64) -> F64:
    """The columns of A, scaled to length one."""
    return np.asarray(A / np.maximum(np.linalg.norm(A, axis=0), 1e-300))


def approximate_covariance(covariance: F64, start: F64) -> tuple[F64, F64]:
    """Nyström's approximation: the matrix of rank m that has the same products with `start` (d, m); and its range.

    The range is spanned by the columns of the second result (d, m).
    """
    X, length, _ = np.linalg.svd(normalise_columns(start), full_matrices=False)
    X = X[:, length > 1e-10 * length[0]]
    products = covariance @ X
    return products @ np.linalg.pinv(X.T @ products, 1e-12, hermitian=True) @ products.T, products


def axes_within(covariance: F64, basis: F64) -> F64:
    """Rayleigh–Ritz: the axes of a covariance within a subspace, times their standard deviations, longest first."""
    U, length, _ = np.linalg.svd(normalise_columns(basis), full_matrices=False)
    U = U[:, length > 1e-13 * length[0]]
    variance, W = np.linalg.eigh(U.T @ covariance @ U)
    axes = U @ W * np.sqrt(np.maximum(variance, 0.0))
    has_variance = variance > 1e-13 * variance[-1]
    longest_first = axes[:, has_variance][:, ::-1]
    return np.asarray(longest_first)
