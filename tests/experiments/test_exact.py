"""The blocked implementations of the paper's methods equal their step-by-step ones."""

import numpy as np
import pytest

from experiments import exact
from experiments.baselines import explicit, incremental

D, K, N = 30, 4, 300
blocks = pytest.mark.parametrize("block", [1, 7, 50])


def stream() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((N, D)) * np.linspace(3, 0.3, D), np.linalg.qr(rng.standard_normal((D, K)))[0]


def in_blocks(name, C, Y, eta, block=50):
    for start in range(0, len(Y), block):
        C = exact.learn(name, C, Y[start : start + block], eta[start : start + block])
    return C


def relative_error(C, expected):
    return (np.abs(C - expected).max(axis=0) / np.linalg.norm(expected, axis=0)).max()


@pytest.mark.parametrize("eta0", [0.01, 1.0, 30.0])
@blocks
@pytest.mark.parametrize(
    ("name", "plain"), [("oja", explicit.oja), ("krasulina", explicit.krasulina), ("explicit", explicit.without_qr)]
)
def test_explicit(name, plain, block, eta0):
    Y, C = stream()
    eta = eta0 / np.arange(1, N + 1) ** 0.9
    expected = C
    for y, step in zip(Y, eta, strict=True):
        expected = plain(expected, y, step)
    assert relative_error(in_blocks(name, C, Y, eta, block), expected) <= 1e-8


@pytest.mark.parametrize("k", [5, 15])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e3, 1e6, 1e8, 1e12])
def test_implicit_at_every_scale(scale, k):
    """C starts orthonormal, so that with large data it grows by many orders of magnitude in its first block.

    In long double precision this loop and Meyer's update are found to be off by up to 1e-9 themselves.
    """
    Y = scale * np.random.default_rng(1).standard_normal((700, D)) / np.sqrt(np.arange(1, D + 1))
    C = expected = np.linalg.qr(np.random.default_rng(2).standard_normal((D, k)))[0]
    eta = 1 / np.arange(1, len(Y) + 1) ** 0.8
    for y, step in zip(Y, eta, strict=True):
        Q, R = np.linalg.qr(expected)
        x = np.linalg.solve(R, Q.T @ y)
        expected = expected - step / (1 + step * (x @ x)) * np.outer(expected @ x - y, x)
    assert relative_error(in_blocks("implicit", C, Y, eta), expected) <= 1e-8


@blocks
def test_incremental(block):
    Y, _ = stream()
    Y[40] = Y[39]  # the residual vanishes up to rounding
    plain = blocked = incremental.start(D, K)
    for y in Y:
        plain = incremental.step(plain, y)
    for start in range(0, N, block):
        blocked = exact.increment(blocked, Y[start : start + block])
    np.testing.assert_allclose(blocked.U @ blocked.U.T, plain.U @ plain.U.T, atol=1e-8)
    np.testing.assert_allclose(blocked.s, plain.s, rtol=1e-8)
    assert blocked.count == plain.count == N


@pytest.mark.parametrize("name", ["oja", "krasulina"])
def test_the_signs_of_lapack(name):
    """One QR at the end gives the same signs as a QR after every message: they do not depend on the earlier ones."""
    Y, C = stream()
    eta = 1 / np.arange(1, N + 1) ** 0.9
    expected = C
    for y, step in zip(Y, eta, strict=True):
        x = expected.T @ y
        away = y if name == "oja" else y - expected @ x
        expected = np.linalg.qr(expected + step * np.outer(away, x))[0]
    np.testing.assert_allclose(np.linalg.qr(in_blocks(name, C, Y, eta))[0], expected, atol=1e-8)
