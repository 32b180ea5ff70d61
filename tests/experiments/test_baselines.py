"""The baselines: batch PCA, explicit and incremental updates, and Frequent Directions, against what they promise."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.utils import gen_batches

from experiments.baselines import explicit, incremental
from experiments.baselines.batch import Batch
from experiments.baselines.frequent_directions import FrequentDirections
from experiments.baselines.incremental_gram import GramIncrementalPCA, RunningCovariance
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian, start

seeds = st.integers(0, 2**32 - 1)


# Batch PCA against scikit-learn.

X = gaussian(0, 500, 1 / np.arange(1, 10.0), offset=3.0)
BATCH = Batch.of(lambda: np.array_split(X, 7))


@pytest.mark.parametrize("k", [1, 4, 8])
def test_batch_pca_equals_scikit_learn(k):
    theirs = PCA(k, svd_solver="full").fit(X)
    back = theirs.inverse_transform(theirs.transform(X))
    assert BATCH.loss(k) == pytest.approx(np.mean(np.sum((X - back) ** 2, axis=1)), rel=1e-9)
    assert BATCH.excess(theirs.components_, theirs.mean_) == pytest.approx(0, abs=1e-7)


@given(seeds, st.integers(1, 8), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_excess_is_that_of_the_mean_squared_residual(seed, k, center):
    random = np.random.default_rng(seed)
    components = np.linalg.qr(random.standard_normal((9, k)))[0].T
    batch, mean = Batch.of(lambda: [X[:100], X[100:]], center), random.standard_normal(9) * center
    away = X - mean
    loss = np.mean(np.sum((away - away @ components.T @ components) ** 2, axis=1))
    assert batch.excess(components, mean) == pytest.approx(100 * (loss / batch.loss(k) - 1), rel=1e-9, abs=1e-9)
    assert batch.excess(components, mean) >= -1e-9


# Oja's and Krasulina's updates against numerical gradients of the paper's losses and against explicit formulas.

sizes = st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 8)).map(
    lambda t: (max(t[:2]), min(t[:2]), t[2])
)  # d ≥ k, and N
etas = st.floats(1e-3, 10)
Step = Callable[[F64, F64, float], F64]
both = pytest.mark.parametrize("step", [explicit.oja, explicit.krasulina])
ORTHONORMAL = 1.0, 1.0  # the lengths of columns


def gradient(f: Callable[[F64], float], C: F64) -> F64:
    """Central differences."""
    slopes = np.zeros_like(C)
    for i in np.ndindex(C.shape):
        nudge = np.zeros_like(C)
        nudge[i] = 1e-5
        slopes[i] = (f(C + nudge) - f(C - nudge)) / 2e-5
    return slopes


@both
@given(size=sizes, seed=seeds, eta=etas)
@settings(max_examples=30, deadline=None)
def test_updates_follow_the_gradient_of_the_projected_variance(
    step: Step, size: tuple[int, int, int], seed: int, eta: float
) -> None:
    """Krasulina's that of Oja's projected onto the tangent space."""
    C, Y = start(seed, *size, ORTHONORMAL)
    slope = gradient(lambda A: -0.5 * float(np.mean(np.sum((Y @ A) ** 2, axis=1))), C)
    if step is explicit.krasulina:
        slope -= C @ (C.T @ slope)
    assert spans_agree(step(C, Y, eta), C - eta * slope)


def spans_agree(Q: F64, A: F64) -> bool:
    """Whether Q is the orthonormal basis of span(A) for which QᵀA is upper triangular with positive diagonal."""
    R = Q.T @ A
    size = np.linalg.norm(A)
    triangular = np.abs(np.tril(R, -1)).max() <= 1e-6 * size
    return bool(triangular and np.diagonal(R).min() >= -1e-6 * size and close(Q @ R, A, 1e-6))


@both
@given(size=sizes, seed=seeds, eta=etas)
@settings(max_examples=30, deadline=None)
def test_columns_are_orthonormal_and_one_message_is_a_batch_of_one(
    step: Step, size: tuple[int, int, int], seed: int, eta: float
) -> None:
    C, Y = start(seed, *size, ORTHONORMAL)
    after = step(C, Y, eta)
    assert np.abs(after.T @ after - np.eye(C.shape[1])).max() <= 1e-12
    assert np.array_equal(step(C, Y[0], eta), step(C, Y[:1], eta))
    assert close(step(explicit.orthonormal(C), np.zeros(len(C)), eta), explicit.orthonormal(C), 1e-12)


# Combination of models, eq. 17.


@given(seeds, st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_average_is_the_minimum_of_the_weighted_distances(seed: int, machines: int) -> None:
    """Eq. 17 minimises Σ αᵢ Δ(Θᵢ, Θ), for fixed ε a sum of squared distances."""
    random = np.random.default_rng(seed)
    factors, alpha = list(random.standard_normal((machines, 5, 2))), random.uniform(0.1, 3, machines)

    def objective(A: F64) -> float:
        return float(sum(a * np.sum((F - A) ** 2) for a, F in zip(alpha, factors, strict=True)))

    best = explicit.average(factors, list(alpha))
    assert np.abs(gradient(objective, best)).max() <= 1e-6
    assert close(explicit.average(factors, list(7 * alpha)), best, 1e-12)
    assert close(explicit.average(factors), np.mean(factors, axis=0), 1e-12)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_alignment_undoes_a_rotation_and_is_the_nearest_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    C, other = random.standard_normal((2, 6, 3))
    R = np.linalg.qr(random.standard_normal((3, 3)))[0]
    assert close(explicit.aligned(C @ R, C), C, 1e-9)
    nearest = np.linalg.norm(explicit.aligned(C, other) - other)
    assert nearest <= np.linalg.norm(C @ R - other) + 1e-12


# The incremental update with (k + 1)-column matrices against the equivalent one with d × d matrices.


def literally(Y: F64, k: int) -> F64:
    """Truncates the full second-moment matrix to rank k after every message."""
    moment = np.zeros((Y.shape[1], Y.shape[1]))
    for t, y in enumerate(Y, start=1):
        variance, V = np.linalg.eigh(((t - 1) * moment + np.outer(y, y)) / t)
        moment = (V[:, -k:] * variance[-k:]) @ V[:, -k:].T
    return moment


def learned(Y: F64, k: int) -> incremental.IncrementalState:
    state = incremental.start(Y.shape[1], k)
    for y in Y:
        state = incremental.step(state, y)
    return state


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_it_equals_the_truncated_second_moment(a: int, b: int, seed: int, n: int) -> None:
    d, k = max(a, b), min(a, b)
    Y = gaussian(seed, n, 1 / np.arange(1, d + 1.0))
    state = learned(Y, k)
    assert close((state.U * state.s) @ state.U.T, literally(Y, k), 1e-9)
    assert np.abs(state.U.T @ state.U - np.eye(k)).max() <= 1e-12
    assert (np.diff(state.s) <= 0).all()
    assert state.count == n


# scikit-learn's IncrementalPCA by Gram matrices, and the running covariance.


def stream(d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((d, 12)))[0] * np.linspace(9, 2, 12)
    drift = np.linspace(0, 3, 700)[:, None]  # so that the batches' means differ
    return rng.standard_normal((700, 12)) @ basis.T + 0.1 * rng.standard_normal((700, d)) + 5 + drift


@pytest.mark.parametrize("d", [20, 300], ids=["by the covariance", "by the Gram matrix of the rows"])
def test_it_is_scikit_learns_incremental_pca(d: int) -> None:
    X, oracle, ours = stream(d), IncrementalPCA(12), GramIncrementalPCA(d, 12)
    for rows in gen_batches(len(X), 64, min_batch_size=12):
        oracle.partial_fit(X[rows])
        ours.partial_fit(X[rows])
    assert np.allclose(np.linalg.norm(ours.factor, axis=1), oracle.singular_values_, rtol=1e-8)
    assert np.allclose(ours.mean, oracle.mean_)
    assert np.allclose(np.abs(np.sum(ours.components(12) * oracle.components_, axis=1)), 1, atol=1e-10)


def test_the_running_covariance_is_that_of_all_rows() -> None:
    X, running = stream(20), RunningCovariance(20)
    for rows in gen_batches(len(X), 64):
        running.partial_fit(X[rows])
    assert np.allclose(running.covariance, np.cov(X.T, bias=True))
    assert np.allclose(running.mean, X.mean(axis=0))


# Frequent Directions keeps its promise, whatever the rows and their order.


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [3, 8, 20])
def test_the_error_is_within_the_bound(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((400, 15)) * np.linspace(4, 0.5, 15)
    if seed % 2:
        A = A[np.argsort(np.abs(A[:, 0]))]
    sketch = FrequentDirections(15, rows)
    for piece in np.array_split(A, 13):
        sketch.add(piece)
    error = np.linalg.eigvalsh(A.T @ A - sketch.sketch.T @ sketch.sketch)
    assert error[0] > -1e-9 * error[-1] - 1e-9  # never more than the truth
    squares = np.linalg.svd(A, compute_uv=False) ** 2
    bounds = [squares[k:].sum() / (rows - k) for k in range(min(rows, 15))]
    assert error[-1] <= min(bounds) * (1 + 1e-9) + 1e-9


def test_with_as_many_rows_as_dimensions_it_is_exact() -> None:
    A = np.random.default_rng(0).standard_normal((100, 6))
    sketch = FrequentDirections(6, 6)
    sketch.add(A)
    np.testing.assert_allclose(sketch.sketch.T @ sketch.sketch, A.T @ A, rtol=1e-10, atol=1e-10)
