"""RankOnePinvUpdate against numpy.linalg.pinv in all six cases, and the updates of S against each other."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from experiments.baselines import pinv
from experiments.baselines.implicit import woodbury
from streampca.pca import algorithm1
from streampca.pca.arrays import F64
from tests.pca.streams import close, start

seeds = st.integers(0, 2**32 - 1)
BEYOND_COLUMNS, BEYOND_ROWS, SINGULAR = {1, 4, 5}, {1, 2}, {2, 4, 6}


def example(case: int, p: int, q: int, seed: int) -> tuple[F64, F64, F64]:
    """A well-conditioned matrix (p, q), and vectors c and d of this case."""
    random = np.random.default_rng(seed)
    U, V = (np.linalg.qr(random.standard_normal((n, n)))[0] for n in (p, q))
    most = min(p - (case in BEYOND_COLUMNS), q - (case in BEYOND_ROWS))
    r = int(random.integers(1, most + 1))
    sigma = random.uniform(0.5, 2, r)
    A = (U[:, :r] * sigma) @ V[:, :r].T
    c, d = U[:, :r] @ unit(random, r), V[:, :r] @ unit(random, r)
    overlap = d @ np.linalg.pinv(A) @ c
    if case in SINGULAR:  # makes dᵀA†c = −1, without scaling by a factor that may be huge
        d = d - V[:, :r] @ (sigma * (U[:, :r].T @ c)) * (1 + overlap)
    elif abs(1 + overlap) < 0.2:
        d = -d
    if case in BEYOND_COLUMNS:
        c = c + U[:, r:] @ unit(random, p - r)
    if case in BEYOND_ROWS:
        d = d + V[:, r:] @ unit(random, q - r)
    return A, c, d


def unit(random: np.random.Generator, n: int) -> F64:
    v = random.standard_normal(n)
    return v / np.linalg.norm(v)


@pytest.mark.parametrize("case", range(1, 7))
@given(p=st.integers(2, 9), q=st.integers(2, 9), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_each_case_equals_numpys_pseudo_inverse(case: int, p: int, q: int, seed: int) -> None:
    A, c, d = example(case, p, q, seed)
    A_pinv = np.linalg.pinv(A, rcond=1e-9)
    assert pinv.parts_of(A, A_pinv, c, d).case == case
    expected = np.linalg.pinv(A + np.outer(c, d), rcond=1e-9)
    error = np.linalg.norm(pinv.rank_one_update(A, A_pinv, c, d) - expected)
    assert error <= 1e-11 * max(1.0, np.linalg.norm(expected) ** 2)  # the effect of rounding A itself


small = st.integers(1, 4)
entries = st.integers(-2, 2)


@given(st.data(), small, small)
@settings(max_examples=400, deadline=None)
def test_matrices_of_small_integers_in_any_case(data: st.DataObject, p: int, q: int) -> None:
    A = data.draw(hnp.arrays(np.float64, (p, q), elements=entries))
    c = data.draw(hnp.arrays(np.float64, (p,), elements=entries))
    d = data.draw(hnp.arrays(np.float64, (q,), elements=entries))
    updated = pinv.rank_one_update(A, np.linalg.pinv(A, rcond=1e-9), c, d)
    assert updated == pytest.approx(np.linalg.pinv(A + np.outer(c, d), rcond=1e-9), abs=1e-8)


@pytest.mark.parametrize("case", range(1, 7))
def test_rounding_does_not_change_the_case(case: int) -> None:
    """Exact zeros are rare: a perturbation of 1e-13 does not change the case."""
    A, c, d = example(case, 6, 5, case)
    noise = np.random.default_rng(0).standard_normal(6) * 1e-13
    assert pinv.parts_of(A, np.linalg.pinv(A, rcond=1e-9), c + noise, d).case == case


# In Algorithm 1.


@given(seeds, st.integers(2, 12), st.integers(1, 11), st.floats(1e-2, 1e2))
@settings(max_examples=40, deadline=None)
def test_algorithm_1_needs_only_the_fifth_case(seed: int, d: int, k: int, eta: float) -> None:
    C, Y = start(seed, d, min(k, d - 1))
    C_pinv = np.linalg.pinv(C)
    for y in Y:
        x = C_pinv @ y
        w = -eta / (1 + eta * (x @ x)) * (C @ x - y)
        parts = pinv.parts_of(C, C_pinv, w, x)
        assert (parts.case, parts.beta) == (5, pytest.approx(1, abs=1e-9))
        updated = pinv.rank_one_update(C, C_pinv, w, x)
        C, C_pinv, _ = algorithm1.meyer(C, C_pinv, y, eta)
        assert close(C_pinv, updated, 1e-9)


@given(seeds, st.integers(1, 12), st.integers(1, 12), st.floats(1e-2, 1e2))
@settings(max_examples=40, deadline=None)
def test_the_papers_rank_two_update_equals_our_rank_one_update(seed: int, d: int, k: int, eta: float) -> None:
    C, Y = start(seed, max(d, k), min(d, k))
    two, one = (C, np.linalg.inv(C.T @ C)), (C, np.linalg.inv(C.T @ C))
    for y in Y:
        *two, loss = woodbury(*two, y, eta)
        *one, same_loss = algorithm1.sherman_morrison(*one, y, eta)
        assert loss == pytest.approx(same_loss, rel=1e-8, abs=1e-12)
        assert close(two[0], one[0], 1e-9)
        assert close(two[1], one[1], 1e-8)
    assert close(two[1], np.linalg.inv(two[0].T @ two[0]), 1e-8)
