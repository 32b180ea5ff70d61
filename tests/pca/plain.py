"""One block in plain NumPy: what `learning` computes, message by message, in the order of docs/mathematics.md.

Start reading here. A test compares the two block for block.
"""

import numpy as np
from numpy.typing import NDArray

from streampca.pca import algorithm1, learning
from streampca.pca.arrays import F64
from streampca.pca.blocked import block, triangle
from streampca.pca.blocked.centring import ORDINARY, SHARE, SHORT
from streampca.pca.state import Losses, State


def learn_block(state: State, V: F64, retention: F64, config: learning.LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (B, d) that is not the first; `retention` (B,) holds each message's ρ."""
    (B, d), k, w, total, kappa = V.shape, config.components, state.weight, state.total_variance, state.concentration
    C, F = state.C[:, :k].astype(np.float64), state.C[:, k:]
    V = without_first_outliers(state, V)  #                                                             section 11
    mean = mean_of_new_entries(state, V) if config.impute else state.mean
    origin, D = (mean, scale_for(state, V, mean)) if config.standardize else (np.zeros(d), np.ones(d))  # section 15
    V, m = D * (V - origin), D * (mean - origin)
    before = weights_before(w, retention)  #                                                            section 3
    eta = 1 / (before + 1)
    c = eta * np.append(np.cumprod((1 - eta)[::-1])[::-1][1:], 1.0)
    past, a = 1 - c.sum(), eta if config.center else np.zeros(B)
    N, shown = known_before(state), ~np.isnan(V)  #                                                     section 11
    age = N.diagonal()[shown.any(axis=0)].min(initial=1.0)  # of the newest entry
    lacking = None if state.missing is None else past * state.missing
    fits, gaps, m0 = np.tile(m, (B, 1)), not shown.all(), m
    if gaps:
        lacking = (0.0 if lacking is None else lacking) + c @ ~shown
        fits = fits_of(V, m, C, max(state.total_variance, np.square(state.C).sum()), seen_before(state))
        V = np.where(shown, fits + (V - fits) / root_of(shown, c), fits)
    Y, kept, residual, norm = np.empty((B, d)), np.ones(B), np.empty(B), np.empty(B)
    S = np.linalg.inv(C.T @ C)
    for s, v in enumerate(V):
        y, known = v - m, 1 - kappa if config.center else 1.0
        limit = max(SHARE * before[s] * age, ORDINARY) * total / known  # bounded influence          section 5
        if y @ y > limit > 0 and state.count + s >= SHORT:
            kept[s] = np.sqrt(limit / (y @ y))
        y *= kept[s]
        norm[s] = y @ y  #                                                                              section 9
        residual[s] = y @ y - np.sum((np.linalg.qr(C)[0].T @ y) ** 2)  # ‖r‖²
        m = m + a[s] * y  # the running mean                                                            section 3
        Y[s] = np.sqrt(1 - a[s]) * y
        total = (1 - eta[s]) * total + eta[s] * (Y[s] @ Y[s])  # tr Σ
        kappa = (1 - eta[s]) ** 2 * kappa + eta[s] ** 2
        C, S = algorithm1.sherman_morrison(C, S, Y[s], eta[s])[:2]  #                                   section 1
    rows = np.sqrt(c)[:, None] * Y
    numbers = {"weight": before[-1] + 1, "count": state.count + B, "concentration": kappa}
    numbers["clipped"] = state.clipped + int(np.sum(kept < 1))
    after = origin + m / D
    of_rows = sketch(rows)
    start = np.hstack([C, F, of_rows[:, ::2] + of_rows[:, 1::2] if config.keeps_covariance else of_rows])
    if config.keeps_covariance:
        old = triangle.unpack(state.covariance, d)  # type: ignore[arg-type]
        raw = past * old + rows.T @ rows / np.outer(D, D)  #                                            section 4
        if gaps or state.known is not None:
            second = rows.T @ rows + np.outer(m - m0, m - m0)
            f, r = kept[:, None] * (fits - m0), kept[:, None] * (V - fits)
            of_axes = predicted(state, k), bool((kept < 1).any())
            raw, moved, N = with_late(old * np.outer(D, D), N, second, m - m0, f, r, shown, c, past, *of_axes)
            raw, after = raw / np.outer(D, D), origin + (m0 + moved * config.center) / D
            numbers["known"] = None if (N > 1 - 1e-9).all() else N[np.tril_indices(d)]
        new_D = one_over_deviation(raw.diagonal()) if config.standardize else D
        covariance = raw * np.outer(new_D, new_D)
        basis = covariance @ unit(start * (new_D / D)[:, None])
        numbers |= {"covariance": raw[np.tril_indices(d)], "total_variance": float(np.trace(covariance))}
    else:
        U, s = unit(state.C), outside(state)  # past·s is added to all directions at the end              section 4
        covariance, new_D, basis = past * (state.C @ state.C.T - s * U @ U.T) + rows.T @ rows, D, np.eye(d)
        numbers["total_variance"], variances = total, past * (0.0 if state.variances is None else state.variances)
        variances = variances + np.square(rows).sum(axis=0) / D**2
        if gaps or state.known is not None:
            f, r = kept[:, None] * (fits - m0), kept[:, None] * (V - fits)
            old = np.zeros(d) if state.variances is None else state.variances
            estimate, eta, N = of_entries(N.diagonal(), m - m0, f, r, shown, c, past)
            moved, square = eta * estimate, (np.square(rows).sum(axis=0) + np.square(m - m0)) / (1 - past) / D**2
            variances = old + eta * (square - old) - np.square(moved / D)
            after = origin + (m0 + moved * config.center) / D
            numbers["known"] = None if (N > 1 - 1e-9).all() else N
        if config.standardize:
            numbers["variances"] = variances
            new_D = one_over_deviation(variances)
            covariance, start = covariance * np.outer(new_D / D, new_D / D), start * (new_D / D)[:, None]
            numbers["total_variance"] = float(np.sum(new_D**2 * variances))
        few = state.count + B <= learning.WHOLE_UNTIL or state.rank + B <= learning.FEW_ROWS
        if not few and past >= learning.SHORT_MEMORY and state.rank >= k:
            covariance, basis = nystrom(covariance, start)
    CF = axes_within(covariance, basis)[:, : config.columns]
    if not config.keeps_covariance:
        CF = unit(CF) * np.sqrt(np.square(CF).sum(axis=0) + past * s * np.median(np.square(new_D / D)))
    scale = new_D if config.standardize else None
    return State(CF, after, missing=lacking, scale=scale, **numbers), Losses(np.clip(residual, 0, norm), norm)


def outside(state: State) -> float:
    """The mean variance of the directions that the columns leave out, at most that of the shortest column."""
    directions, variance = seen_before(state) - state.rank, np.square(state.C).sum(axis=0)
    if not directions or not state.rank:
        return 0.0
    return float(min(max((state.total_variance - variance.sum()) / directions, 0.0), variance.min()))


def weights_before(w: float, retention: F64) -> F64:
    """ρw of each message (B,): the weight of all messages before it."""
    before = np.empty(len(retention))
    for s, rho in enumerate(retention):
        before[s] = rho * w
        w = before[s] + 1.0
    return before


def without_first_outliers(state: State, V: F64) -> F64:
    """V (B, d), where no value of an entry that begins is farther from its median than ten median distances."""
    V = V.copy()
    for j in np.flatnonzero(known_before(state).diagonal() <= 0):
        values = V[~np.isnan(V[:, j]), j]
        far = np.abs(values - np.median(values))[values != np.median(values)] if len(values) else values
        if len(far):
            V[:, j] = np.clip(V[:, j], *(np.median(values) + 10 * np.median(far) * np.array([-1, 1])))
    return V


def mean_of_new_entries(state: State, V: F64) -> F64:
    """The mean (d,); entries that no message has shown have that of the block V (B, d)."""
    new = (known_before(state).diagonal() <= 0) & ~np.isnan(V).all(axis=0)
    return np.where(new, mean_shown(V), state.mean)


def known_before(state: State) -> F64:
    """N (d, d), the share of the weight since two entries were seen; without Σ only its diagonal counts."""
    d = len(state.mean)
    if state.known is None:
        return np.ones((d, d))
    return np.diag(state.known) if len(state.known) == d else triangle.unpack(state.known, d)


def seen_before(state: State) -> int:
    """The number of entries that were ever seen: only these have variance."""
    return int(np.sum(known_before(state).diagonal() > 0))


def root_of(shown: NDArray[np.bool_], c: F64) -> F64:
    """√q (d,), q the share of the block's messages that have an entry."""
    return np.asarray(np.sqrt(np.maximum(c @ shown / c.sum(), 0.1)))


def share_of(known: F64, weight: F64, past: float) -> tuple[F64, F64]:
    """η and N after a block that shows entries, or pairs, with this weight."""
    counts = np.minimum(1 - past, weight / 0.1)
    after = past * known + np.where((weight <= 0) & (known > 0), 1 - past, counts)
    return counts / np.where(after > 0, after, 1.0), after


def of_entries(
    known: F64, moved: F64, f: F64, r: F64, shown: NDArray[np.bool_], c: F64, past: float
) -> tuple[F64, F64, F64]:
    """How far the mean is from the one before (d,) by this block, its share in the next one, and N's next diagonal."""
    weight = c @ shown
    of_fits, share = c @ f, np.where(weight > 0, root_of(shown, c) / np.maximum(weight, 1e-300), 0.0)
    estimate = of_fits / (1 - past) + (moved - of_fits) * share
    return np.where(weight > 0, estimate, 0.0), *share_of(known, weight, past)


def with_late(
    old: F64, known: F64, second: F64, moved: F64, f: F64, r: F64, shown: NDArray[np.bool_], c: F64, past: float,
    axes: tuple[F64, F64], clipped: bool,
) -> tuple[F64, F64, F64]:  # fmt: skip
    """Σ, how far the mean has moved, and N after a block whose rows have these `second` moments."""
    new, root = 1 - past, root_of(shown, c)
    pairs = (c[:, None] * shown).T @ shown
    FF, FR = (c[:, None] * f).T @ f, (c[:, None] * f).T @ r
    RR = (second - FF - FR - FR.T) * np.outer(root, root)
    per_pair, per_entry = (np.where(p > 0, 1 / np.maximum(p, 1e-300), 0.0) for p in (pairs, pairs.diagonal()))
    estimate = FF / new + FR * (root * per_entry) + FR.T * (root * per_entry)[:, None] + RR * per_pair
    eta, after = share_of(known, pairs, past)
    of_mean, share, _ = of_entries(known.diagonal(), moved, f, r, shown, c, past)
    change, mean = eta * (estimate - old), share * of_mean
    on = (share > 0) & (share <= 1.5 * new)
    if on.any() and not on.all():  # what the axes say of the others
        C, ridge = axes
        of_x = np.linalg.inv(C[on].T @ C[on] + np.diag(ridge)) @ C[on].T
        K, limit = C @ of_x, ORDINARY * C.shape[1]
        K[on] = np.eye(on.sum())
        of_pairs, of_entry = K @ change[np.ix_(on, on)] @ K.T, K @ mean[on]
        of_pairs[np.ix_(on, on)] = of_entry[on] = 0.0
        gone = (share <= 0) & (known.diagonal() > 0)
        most, added = second.diagonal()[gone].sum(), of_pairs.diagonal()[gone].clip(0).sum()
        of_pairs *= most / added if added > most and clipped else 1.0  # a clipped message adds no more than its fits
        of_pairs *= limit / max(limit, np.trace(of_x @ change[np.ix_(on, on)] @ of_x.T))  # and hardly any is farther
        of_entry *= np.sqrt(limit / max(limit, np.sum(np.square(of_x @ mean[on]))))
        change = change + (known > 0) * (1 - eta / new) * of_pairs
        mean = mean + (known.diagonal() > 0) * (1 - share / new) * of_entry
    covariance = old + change - np.outer(mean, mean)
    largest = np.sqrt(np.outer(covariance.diagonal().clip(0), covariance.diagonal().clip(0)))
    return np.clip(covariance, -largest, largest), mean, after


def predicted(state: State, k: int) -> tuple[F64, F64]:
    """C (d, k) and the ridge σ²λ/(λ − σ²)."""
    C = state.C[:, :k].astype(np.float64)
    variance = np.square(C).sum(axis=0)
    total = max(state.total_variance, np.square(state.C).sum())  # of an indefinite Σ, columns have more than its trace
    noise = max((total - variance.sum()) / (seen_before(state) - k), 1e-10 * variance.max())
    return np.where(np.abs(C) > 1e-14 * np.abs(C).max(), C, 0.0), noise / (1 - noise / variance)


def mean_shown(V: F64) -> F64:
    """The mean of the entries that are not missing (d,); 0 without any."""
    shown = ~np.isnan(V)
    return np.asarray(np.where(shown, V, 0.0).sum(axis=0) / np.maximum(shown.sum(axis=0), 1))


def scale_for(state: State, V: F64, mean: F64) -> F64:
    """D (d,): the state's; of an entry that was constant so far, by the messages of the block V (B, d) changing it."""
    changes = np.where(mean == V, np.nan, np.square(V - mean))
    return np.where(state.entry_variances > 0, state.scale, one_over_deviation(mean_shown(changes)))


def one_over_deviation(variance: F64) -> F64:
    """D (d,) by the variances of entries; 1 for a constant one."""
    return np.asarray(1 / np.sqrt(np.where(variance > 0, variance, 1.0)))


def fits_of(V: F64, mean: F64, C: F64, total_variance: float, seen: int | None = None) -> F64:
    """Conditional means of probabilistic PCA with the axes C (d, k), of all entries of V (B, d), and clipped.

    The noise is that of the entries that were `seen`; None: of all.
    """
    (d, k), variance = C.shape, np.square(C).sum(axis=0)
    noise = max((total_variance - variance.sum()) / ((seen or d) - k), 1e-10 * variance.max())
    C = np.where(np.abs(C) > 1e-14 * np.abs(C).max(), C, 0.0)  # of constant entries
    W = C * np.sqrt(1 - noise / variance)
    sigma = W @ W.T + noise * np.eye(d)
    fits = np.empty(V.shape)
    for fit, v in zip(fits, V, strict=True):
        o = ~np.isnan(v)
        z = W[o].T @ np.linalg.solve(sigma[np.ix_(o, o)], v[o] - mean[o])
        x = z * np.sqrt(1 - noise / variance)
        fit[:] = mean + W @ z * min(1.0, np.sqrt((k + np.sqrt(2 * k)) / (x @ x)))
    return fits


def sketch(rows: F64) -> F64:
    """Combinations of the rows (B, d), as columns (d, SKETCH)."""
    column, sign = block.draw_combinations(len(rows)).T
    return np.asarray(rows.T @ (np.eye(block.SKETCH)[column] * sign[:, None]))


def unit(A: F64) -> F64:
    """The columns at length one."""
    return np.asarray(A / np.maximum(np.linalg.norm(A, axis=0), 1e-300))


def nystrom(covariance: F64, start: F64) -> tuple[F64, F64]:
    """The matrix that equals a covariance on span(start), has its products there and rank m; and its range (d, m)."""
    X, length, _ = np.linalg.svd(unit(start), full_matrices=False)
    X = X[:, length > 1e-10 * length[0]]
    products = covariance @ X
    return products @ np.linalg.pinv(X.T @ products, 1e-12, hermitian=True) @ products.T, products


def axes_within(covariance: F64, basis: F64) -> F64:
    """Rayleigh–Ritz: the axes of a covariance within a subspace, times their standard deviations, longest first."""
    U, length, _ = np.linalg.svd(unit(basis), full_matrices=False)
    U = U[:, length > 1e-13 * length[0]]
    variance, W = np.linalg.eigh(U.T @ covariance @ U)
    return np.asarray((U @ W * np.sqrt(np.maximum(variance, 0.0)))[:, variance > 1e-13 * variance[-1]][:, ::-1])
