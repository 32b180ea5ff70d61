"""One block in plain NumPy: what `learning` computes, message by message, in the order of docs/mathematics.md.

Start reading here. A test compares the two block for block.
"""

import numpy as np

from streampca.pca import algorithm1, learning
from streampca.pca.arrays import F64
from streampca.pca.blocked import block, triangle
from streampca.pca.blocked.centring import ORDINARY, SHARE, SHORT
from streampca.pca.state import Losses, MissingShares, State


def learn_block(state: State, V: F64, retention: F64, config: learning.LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (B, d) that is not the first; `retention` (B,) holds each message's ρ."""
    (B, d), k, w, total, kappa = V.shape, config.components, state.weight, state.total_variance, state.concentration
    C, F, shares = state.C[:, :k].astype(np.float64), state.C[:, k:], state.missing
    mean = mean_of_new_entries(state, V) if config.impute else state.mean  #                            section 11
    origin, D = (mean, scale_for(state, V, mean)) if config.standardize else (np.zeros(d), np.ones(d))  # section 15
    V, m = D * (V - origin), D * (mean - origin)
    before = weights_before(w, retention)  #                                                            section 3
    eta = 1 / (before + 1)
    c = eta * np.append(np.cumprod((1 - eta)[::-1])[::-1][1:], 1.0)
    past, a = 1 - c.sum(), eta if config.center else np.zeros(B)
    shown = ~np.isnan(V).all(axis=0) if shares is None else ~np.isnan(V).all(axis=0) | ~shares.never
    age = 1.0 if shares is None else 1 - shares.unseen[shown].max()  # of the newest entry
    surplus, shares = np.zeros((B, d)), shares and shares.times(past)
    if np.isnan(V).any():
        V, surplus, shares = fill(state, V, m, c, past, config)
    Y, kept, residual, norm = np.empty((B, d)), np.ones(B), np.empty(B), np.empty(B)
    S = np.linalg.inv(C.T @ C)
    for s, v in enumerate(V):
        y, known = v - m, 1 - kappa if config.center else 1.0
        limit = max(SHARE * before[s] * age, ORDINARY) * total / known  # bounded influence          section 5
        if y @ y > limit > 0 and state.count + s >= SHORT:
            kept[s] = np.sqrt(limit / (y @ y))
        y *= kept[s]
        norm[s] = y @ y - kept[s] ** 2 * surplus[s].sum()  #                                            section 9
        of_surplus = kept[s] ** 2 * surplus[s].sum() * (1 - k / d)
        residual[s] = y @ y - np.sum((np.linalg.qr(C)[0].T @ y) ** 2) - of_surplus  # ‖r‖²
        m = m + a[s] * y  # the running mean                                                            section 3
        Y[s] = np.sqrt(1 - a[s]) * y
        total = (1 - eta[s]) * total + eta[s] * (Y[s] @ Y[s])  # tr Σ
        kappa = (1 - eta[s]) ** 2 * kappa + eta[s] ** 2
        C, S = algorithm1.sherman_morrison(C, S, Y[s], eta[s])[:2]  #                                   section 1
    rows, of_entries = np.sqrt(c)[:, None] * Y, (c * (1 - a) * kept**2) @ surplus
    numbers = {"weight": before[-1] + 1, "count": state.count + B, "concentration": kappa}
    numbers["clipped"] = state.clipped + int(np.sum(kept < 1))
    seen, after = (np.ones(d) if shares is None else shares.seen), origin + m / D
    of_rows = sketch(rows)
    start = np.hstack([C, F, of_rows[:, ::2] + of_rows[:, 1::2] if config.keeps_covariance else of_rows])
    if config.keeps_covariance:
        old = triangle.square(state.covariance, d)  # type: ignore[arg-type]
        raw = past * old + (rows.T @ rows - np.diag(of_entries)) / np.outer(D, D)  #                    section 4
        new_D = one_over_deviation(raw.diagonal() / seen) if config.standardize else D
        covariance = raw * np.outer(new_D, new_D) / np.minimum.outer(seen, seen)
        basis = covariance @ unit(start * (new_D / D)[:, None])
        numbers |= {"covariance": raw[np.tril_indices(d)], "total_variance": float(np.trace(covariance))}
    else:
        covariance, new_D, basis = past * state.C @ state.C.T + rows.T @ rows, D, np.eye(d)
        numbers["total_variance"] = total - of_entries.sum()
        if config.standardize:
            old = 0.0 if state.variances is None else past * state.variances
            numbers["variances"] = old + (np.square(rows).sum(axis=0) - of_entries) / D**2
            new_D = one_over_deviation(numbers["variances"] / seen)
            covariance, start = covariance * np.outer(new_D / D, new_D / D), start * (new_D / D)[:, None]
            numbers["total_variance"] = float(np.sum(new_D**2 * numbers["variances"] / seen))
        few = state.count + B <= learning.WHOLE_UNTIL or state.rank + B <= learning.FEW_ROWS
        if not few and past >= learning.SHORT_MEMORY and state.rank >= k:
            covariance, basis = nystrom(covariance, start)
    CF = axes_within(covariance, basis)[:, : config.columns]
    scale = new_D if config.standardize else None
    return State(CF, after, missing=shares, scale=scale, **numbers), Losses(np.clip(residual, 0, norm), norm)


def weights_before(w: float, retention: F64) -> F64:
    """ρw of each message (B,): the weight of all messages before it."""
    before = np.empty(len(retention))
    for s, rho in enumerate(retention):
        before[s] = rho * w
        w = before[s] + 1.0
    return before


def mean_of_new_entries(state: State, V: F64) -> F64:
    """The mean (d,); entries that hardly any message has shown have that of the block V (B, d)."""
    if state.missing is None:
        return state.mean
    shown = (1 - state.missing.entries) * state.weight
    new = (shown < 0.5) | (shown < 32) & (state.missing.unseen > 0.5)
    return np.where(new & ~np.isnan(V).all(axis=0), mean_shown(V), state.mean)


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


def fill(
    state: State, V: F64, mean: F64, c: F64, past: float, config: learning.LearningConfig
) -> tuple[F64, F64, MissingShares]:
    """V (B, d) filled; what that adds to the squares of its entries; and the next shares. Section 11."""
    absent = np.isnan(V)
    incomplete, old = absent.any(axis=1), state.missing or MissingShares.none(V.shape[1], seen=True)
    first = np.where(absent.all(axis=0), len(V), absent.argmin(axis=0))  # message that shows an entry
    unseen = past * old.unseen + old.never * np.append(0.0, np.cumsum(c))[first]
    shares = MissingShares(past * old.messages + c @ incomplete, past * old.entries + c @ absent, unseen)
    since = np.maximum(shares.messages - unseen, 1e-300)
    pi = np.maximum(1 - (shares.entries - unseen) / since, 0.3)
    fits = fits_of(V, mean, state.C[:, : config.components].astype(np.float64), state.total_variance)
    r = np.where(absent | ~incomplete[:, None], 0.0, V - fits)
    return np.where(absent, fits, V + r * (1 / pi - 1)), r**2 * (1 / pi**2 - 1 / pi), shares


def fits_of(V: F64, mean: F64, C: F64, total_variance: float) -> F64:
    """Conditional means of probabilistic PCA with the axes C (d, k), of all entries of V (B, d), and clipped."""
    (d, k), variance = C.shape, np.square(C).sum(axis=0)
    noise = (total_variance - variance.sum()) / (d - k)
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
    column, sign = block.combinations(len(rows)).T
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
