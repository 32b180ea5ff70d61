"""Messages that lack entries, which are NaN: a block's are filled, and learned like any other; Σ counts what is filled.

With y = v − m, the observed entries O, and the leading axes times their standard deviations C (d, k), before the block:

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O          filled: m + Cx, and r/√q where observed, r = (y − Cx)_O

Cx is the prediction of `projection.fill`, compiled since whole streams pass here, and clipped since what is filled is
learned. q_j is the share of the block's messages that have entry j: rows keep their length on average.

Products of Σ are estimated in each block by all messages for the fits f = Cx, and by those that have an entry, or both
entries, for what r adds: B_ij = mean(f_i f_j) + mean_j(f_i r_j) + mean_i(r_i f_j) + mean_ij(r_i r_j). A pair that was
known for the share N_ij of the weight moves by η_ij(B_ij − Σ_ij), η_ij = 1/N_ij times the block's share; what the other
entries' change says of it, by the axes, moves by the block's share. docs/mathematics.md, section 11.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import block, ritz, triangle
from streampca.pca.blocked.centring import Weights
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock
from streampca.pca.projection import noise_variance
from streampca.pca.state import State

FILLS = 30  # of the first block
_FEW = 0.1  # share of a block: of entries and pairs that fewer messages show, it says less
_LONG = 1.5  # steps of the whole: entries that take no larger ones say what a block changes in others
_MIN_NOISE = 1e-10  # σ², of the largest variance: keeps C_OᵀC_O + ridge regular
_ROWS = 16  # messages whose intermediate results fit the processor's cache
_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)


def _predictor(mean: F64, C: Array, variance: F64, total_variance: float) -> tuple[F64, F64, F64]:
    """The mean, C (d, n) and the ridge σ²λ/(λ − σ²) (n,) of the axes with more than noise, which predict entries."""
    noise = max(noise_variance(variance, len(C), total_variance), _MIN_NOISE * variance.max(initial=0.0))
    signal = variance > noise
    if not signal.any():  # nothing to predict by: the mean
        return mean, np.zeros((len(C), 1)), np.ones(1)
    C, variance, rounding = C[:, signal].astype(np.float64), variance[signal], 8 * float(np.finfo(C.dtype).eps)
    C[np.abs(C).max(axis=1) < rounding * np.abs(C).max()] = 0.0  # of constant entries, which filling must not make vary
    return mean, np.ascontiguousarray(C), noise / (1 - noise / variance)


class Filled(NamedTuple):
    """A block whose missing entries are filled, and by what."""

    V: Array  # (n, d)
    mean: F64  # (d,): m
    X: F64  # (n, K): the fits are m + Cx
    C: F64  # (d, K)
    root: F64  # (d,): √q
    shown: NDArray[np.bool_]  # (n, d)


def fill(state: State, V: Array, weights: Weights, components: int, center: bool) -> Filled:
    """The block V (n, d) with its missing entries filled, where its messages have these weights."""
    missing = np.isnan(V)
    mean, C, ridge = predictor(state, components) if state.count else _by_em(V, missing, components, center)
    root = np.sqrt(np.maximum(weights.c @ ~missing / weights.c.sum(), _FEW))
    filled, X = _fill(V, mean, C, ridge, root)
    return Filled(filled, mean, X, C, root, ~missing)


def predictor(state: State, components: int) -> tuple[F64, F64, F64]:
    """The mean, C (d, n) and the ridge (n,) of the axes by which entries are predicted."""
    k = min(components, state.rank)
    return _predictor(state.mean, state.C[:, :k], state.variance[:k], state.total_variance)


def initialise_new_means(state: State, V: Array) -> State:
    """The state in which new entries that the block V (n, d) shows have the block's mean."""
    if state.known is None or not state.count:
        return state
    missing = np.isnan(V)
    new = (state.known_entries <= 0) & ~missing.all(axis=0)
    return replace(state, mean=np.where(new, _observed_mean(V, missing), state.mean)) if new.any() else state


class Step(NamedTuple):
    """What a block changes in the moments of entries, or pairs."""

    estimate: F64  # B: of the block
    eta: F64  # the share of it in the next moments
    known: F64 | None  # N after the block; None: 1

    @classmethod
    def of(cls, estimate: F64, shown: F64, known: F64 | None, weights: Weights, begun: bool) -> "Step":
        """`shown`: the weight of the block's messages that show an entry, or pair; `known`: N before the block."""
        new = 1.0 - weights.past
        before = weights.past * (np.full(shown.shape, float(begun)) if known is None else known)
        counts = np.minimum(new, shown / _FEW)
        after = before + np.where((shown <= 0) & (before > 0), new, counts)
        eta = counts / np.where(after > 0, after, 1.0)
        if shown.ndim == 2:  # pairs of known entries that are not together in the block
            entries = np.where(shown.diagonal() > 0, new, 0.0) + before.diagonal()
            least = np.minimum.outer(entries, entries)
            on = np.logical_and.outer(shown.diagonal() > 0, shown.diagonal() > 0)
            first = np.minimum.outer(before.diagonal(), before.diagonal()) <= 0
            apart = (shown <= 0) & (least > 0) & (on | first)
            eta = np.where(apart, new / np.where(least > 0, np.maximum(least, new), 1.0), eta)
        return cls(estimate, eta, None if after.min(initial=1.0) > 1 - 1e-9 else after)


def move_mean(
    known: F64 | None, moved: F64, filled: Filled | None, learned: block.BlockResult, weights: Weights, begun: bool
) -> Step:
    """The step of the means, by how far the rows have `moved` theirs (d,); `known` (d,) is the diagonal of N."""
    new = 1.0 - weights.past
    if filled is None:
        return Step.of(moved / new, np.full(len(moved), new), known, weights, begun)
    shown, fits = weights.c @ filled.shown, filled.C @ ((weights.c * learned.kept) @ filled.X)
    fits = fits if weights.a.any() else np.zeros_like(fits)  # without centring the mean is 0
    estimate = fits / new + (moved - fits) * filled.root / np.where(shown > 0, shown, np.inf)
    return Step.of(np.where(shown > 0, estimate, 0.0), shown, known, weights, begun)


def move_pairs(
    state: State, second: F64, filled: Filled | None, learned: block.BlockResult, weights: Weights
) -> Step:
    """The step of Σ (d, d), by the `second` moments (d, d) of the block's rows about the mean before it."""
    new, d = 1.0 - weights.past, len(second)
    known = None if state.known is None else triangle.square(state.known, d)
    if filled is None:
        return Step.of(second / new, np.full((d, d), new), known, weights, state.count > 0)
    c, C, root, rows = weights.c * np.square(learned.kept), filled.C, filled.root, np.sqrt(weights.c)[:, None]
    shown = _mirrored(triangle.of_rows(rows * filled.shown))
    entries = np.where(shown.diagonal() > 0, shown.diagonal(), np.inf)
    H = (filled.X * c[:, None]).T @ filled.X
    XV = (filled.X * c[:, None]).T @ (filled.V - filled.mean)
    fits, cross = C @ H @ C.T, C @ (XV - H @ C.T)
    residuals = (second - fits - cross - cross.T) * np.outer(root, root) / np.where(shown > 0, shown, np.inf)
    filled_in, cross = cross * root / new, cross * (root / entries)  # pairs that no message shows: as filled
    before = np.full(len(second), float(state.count > 0)) if known is None else known.diagonal()
    begin = np.minimum.outer(before, before) <= 0  # fits of an entry that begins are 0
    estimate = fits / new + np.where((shown > 0) | begin, cross + cross.T + residuals, filled_in + filled_in.T)
    return Step.of(estimate, shown, known, weights, state.count > 0)


def _mirrored(lower: Array) -> F64:
    """The symmetric matrix of a lower triangle in a square whose upper one is 0."""
    lower = lower.astype(np.float64, copy=False)
    return np.asarray(lower + np.tril(lower, -1).T)


def moved(
    state: State, covariance: F64, product: Array, filled: Filled | None, learned: block.BlockResult, weights: Weights,
    components: int,
) -> tuple[F64, F64, F64 | None]:  # fmt: skip
    """Σ (d, d), how far the mean has moved (d,), and N packed, after a block of which the rows give `product`."""
    new, of_rows = 1.0 - weights.past, learned.mean - (filled.mean if filled else state.mean)
    second = _mirrored(product) + np.outer(of_rows, of_rows)
    pairs = move_pairs(state, second, filled, learned, weights)
    entries = move_mean(state.known_entries, of_rows, filled, learned, weights, state.count > 0)
    change, mean = pairs.eta * (pairs.estimate - covariance), entries.eta * entries.estimate
    on = (entries.eta > 0) & (entries.eta <= _LONG * new)
    if state.count and not on.all() and on.any():
        K = _regression(state, on, components)
        of_mean, of_pairs = K @ mean[on], K @ change[np.ix_(on, on)] @ K.T
        known = np.ones_like(covariance) if state.known is None else triangle.square(state.known, len(mean))
        of_pairs[np.ix_(on, on)], of_mean[on] = 0.0, 0.0
        most, added = second.diagonal()[~on].sum(), of_pairs.diagonal().clip(0).sum()
        if added > most and (learned.kept < 1).any():  # a message of bounded influence adds no more than its fits
            of_pairs *= most / added
        entries_known = known.diagonal() > 0
        change += np.outer(entries_known, entries_known) * (1 - pairs.eta / new) * of_pairs
        mean += (known.diagonal() > 0) * (1 - entries.eta / new) * of_mean
    after = covariance + change - np.outer(mean, mean)
    N = pairs.known if pairs.known is None else pairs.known[np.tril_indices(len(mean))]
    return cut(after), mean, N  # correlations that few messages show may seem larger than 1


def _regression(state: State, on: NDArray[np.bool_], components: int) -> F64:
    """K (d, m), which predicts all entries from those that are `on` (d,), m of them; these by themselves."""
    _, C, ridge = predictor(state, components)
    K = C @ np.linalg.solve(C[on].T @ C[on] + np.diag(ridge), C[on].T)
    K[on] = np.eye(len(K.T))
    return np.asarray(K)


def _observed_mean(V: Array, missing: NDArray[np.bool_]) -> F64:
    """The mean of the observed entries, (d,); 0 without any."""
    return np.asarray(np.where(missing, 0.0, V).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1))


def _by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> tuple[F64, F64, F64]:
    """The predictor of the first block, which starts from the block's mean and is refitted to the filled block."""
    n, d = V.shape
    mean, whole = _observed_mean(V, missing) if center else np.zeros(d), np.ones(d)
    found = _start(V - mean, mean, missing, components)
    for _ in range(FILLS):
        filled, _ = _fill(V, *found, whole)
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        C = ritz.strongest(Y, ritz.Limits(components, ritz.RANK_TOLERANCE, 0.0))
        found = _predictor(mean, C, np.vecdot(C.T, C.T), float(np.vdot(Y, Y)))
    return found


def _start(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> tuple[F64, F64, F64]:
    """The predictor with which EM begins: the mean, or where some sensors are never together what links them.

    From there EM ends in a wrong local optimum in half of all cases: the sensors' groups agree each for itself.
    """
    shown = (~missing).astype(np.float64)
    together = shown.T @ shown
    seen = together.diagonal() > 0
    met = together > 0
    if met[np.ix_(seen, seen)].all():
        return _predictor(mean, np.zeros((len(mean), 1)), np.zeros(1), 0.0)
    Y = np.where(missing, 0.0, Y)
    S = completed(np.where(met, Y.T @ Y / np.maximum(together, 1.0), 0.0), together)
    values, axes = np.linalg.eigh(S)
    variance = np.maximum(values[::-1][:components], 0.0)
    return _predictor(mean, np.ascontiguousarray(axes[:, ::-1][:, :components] * np.sqrt(variance)), variance, float(np.trace(S)))


def completed(S: F64, known: F64) -> F64:
    """Σ (d, d), where pairs that are known together nowhere (0 in `known`) follow from the sensors that have met both."""
    seen, met = np.flatnonzero(known.diagonal() > 0), known > 0
    if met[np.ix_(seen, seen)].all():
        return S
    S = S.copy()
    patterns, which = np.unique(met[seen], axis=0, return_inverse=True)
    of_pattern = [seen[which.ravel() == g] for g in range(len(patterns))]
    for g, left in enumerate(of_pattern):
        for right in of_pattern[:g]:
            if met[left[0], right[0]]:
                continue
            common = np.flatnonzero(met[left[0]] & met[right[0]])
            common = common[met[np.ix_(common, common)].all(axis=1)]
            block = np.zeros((len(left), len(right)))
            if len(common):
                values, axes = np.linalg.eigh(S[np.ix_(common, common)])
                inverse = (axes / np.maximum(values, max(_MIN_NOISE * values[-1], _TINY))) @ axes.T
                block = S[np.ix_(left, common)] @ inverse @ S[np.ix_(common, right)]
            S[np.ix_(left, right)], S[np.ix_(right, left)] = block, block.T
    return S


def cut(S: F64) -> F64:
    """Σ (d, d) with correlations of at most 1."""
    root = np.sqrt(np.maximum(S.diagonal(), 0.0))
    largest = np.outer(root, root)
    return np.clip(S, -largest, largest)


@compiled_without_lock
def _fill(V: Array, mean: F64, C: F64, ridge: F64, root: F64) -> tuple[Array, F64]:
    """The messages V (B, d) with missing entries filled, and x (B, k); `root` (d,) is √q.

    x is clipped to ‖x‖² ≤ k + √2k, the mean and a standard deviation of complete Gaussian messages: where few
    entries say little, their noise would be magnified, learned, and magnified again.
    """
    (B, d), whole = V.shape, C.T @ C
    filled, X, more = np.empty(V.shape, V.dtype), np.zeros((B, C.shape[1])), np.empty(d)
    for j in range(d):
        more[j] = 1.0 / root[j] - 1.0
    for i in range(0, B, _ROWS):
        e = min(i + _ROWS, B)
        X[i:e] = _fill_few(V[i:e], filled[i:e], (mean, C, whole, ridge, more))
    return filled, X


@compiled_within
def _fill_few(V: Array, filled: Array, fixed: Any) -> F64:
    """Fill a few messages. `fixed`: the mean, C, CᵀC, the ridge and 1/√q − 1."""
    mean, C, whole, ridge, more = fixed
    (B, d), missing = V.shape, np.zeros(len(V), np.int64)
    Y = np.empty((B, d))
    for s in range(B):
        gone = 0
        for j in range(d):  # without branches, so that it vectorises; only NaN differs from itself
            y = V[s, j] - mean[j]
            Y[s, j] = y if y == y else 0.0
            gone += 0 if y == y else 1
        missing[s] = gone
    X = _coordinates(V, missing, Y @ C, C, whole, ridge)
    fits = X @ C.T
    for s in range(B):
        for j in range(d):
            v, r = V[s, j], Y[s, j] - fits[s, j]
            filled[s, j] = v + r * more[j] if v == v else mean[j] + fits[s, j]
    return X


@compiled_within
def _coordinates(V: Array, missing: Any, P: F64, C: F64, whole: F64, ridge: F64) -> F64:
    """x (B, k) of each message, from P = C_Oᵀy_O (B, k) and the number of its missing entries."""
    (B, d), k = V.shape, C.shape[1]
    X = np.zeros((B, k))
    for s in range(B):
        fewer = missing[s] <= d - missing[s]  # sum over the missing rows of C, if they are fewer, or the observed ones
        part, i = np.zeros((max(1, min(missing[s], d - missing[s])), k)), 0
        for j in range(d):
            if math.isnan(V[s, j]) == fewer:
                for m in range(k):
                    part[i, m] = C[j, m]
                i += 1
        H = part.T @ part
        for i in range(k):
            for m in range(k):
                H[i, m] = (whole[i, m] - H[i, m] if fewer else H[i, m]) + (ridge[i] if i == m else 0.0)
        _solve(H, P[s], X[s])
        _clip(X[s])
    return X


@compiled_within
def _clip(x: F64) -> None:
    """Clip x to ‖x‖² ≤ k + √2k."""
    square, limit = 0.0, len(x) + math.sqrt(2.0 * len(x))
    for i in range(len(x)):
        square += x[i] * x[i]
    scale = math.sqrt(limit / square) if square > limit else 1.0
    for i in range(len(x)):
        x[i] *= scale


@compiled_within
def _solve(H: F64, p: F64, x: F64) -> None:
    """x = H⁻¹p; 0 if H is not numerically positive definite."""
    L, good = _cholesky(H)
    if not good:
        return
    for i in range(len(p)):
        left = p[i]
        for j in range(i):
            left -= L[i, j] * x[j]
        x[i] = left / L[i, i]
    for i in range(len(p) - 1, -1, -1):
        left = x[i]
        for j in range(i + 1, len(p)):
            left -= L[j, i] * x[j]
        x[i] = left / L[i, i]


@compiled_within
def _cholesky(A: F64) -> tuple[F64, bool]:
    """Lower-triangular L with LLᵀ = A, and whether A is numerically positive definite; if not, L is undefined."""
    K = len(A)
    L = np.zeros((K, K))
    for i in range(K):
        for j in range(i + 1):
            left = A[i, j]
            for m in range(j):
                left -= L[i, m] * L[j, m]
            if j < i:
                L[i, j] = left / L[j, j]
            elif left > K * _EPS * A[i, i] and left < np.inf:  # else the rest of the column is rounding
                L[i, i] = math.sqrt(left)
            else:
                return L, False
    return L, True
