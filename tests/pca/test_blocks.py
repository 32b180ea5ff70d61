"""Exact blocks are Algorithm 1, message by message."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streampca.pca import blocks, krasulina
from streampca.pca.krasulina import Factor
from tests.pca.streams import F64, close

cases = st.fixed_dictionaries(
    {
        "d": st.integers(1, 40),
        "k": st.integers(1, 12),
        "B": st.integers(1, 64),
        "seed": st.integers(0, 2**32 - 1),
        "steps": st.sampled_from(["power", "weight", "wild", "zeros", "huge"]),
        "zero_messages": st.booleans(),
    }
)


def steps(kind: str, B: int, random: np.random.Generator) -> F64:
    """A sequence of η."""
    t = np.arange(1, B + 1)
    return {
        "power": 1 / t**0.8,
        "weight": 1 / (100.0 + t),
        "wild": 10 ** random.uniform(-3, 1, B),
        "zeros": np.where(t % 3, 0.1, 0.0),
        "huge": np.full(B, 1e4),
    }[kind]


def learn_block(C: F64, Y: F64, eta: F64) -> tuple[F64, blocks.Block]:
    """C after the block, and the block."""
    N = C.T @ C
    block = blocks.run(Y @ C, Y @ Y.T, np.linalg.inv(N), N, eta)
    return C @ block.Pi + Y.T @ block.Z, block


@given(cases)
@example({"d": 25, "k": 1, "B": 29, "seed": 37, "steps": "huge", "zero_messages": False})  # S shrinks to 1e-5 of it
@settings(max_examples=150, deadline=None)
def test_a_block_is_algorithm_1(case: dict[str, object]) -> None:
    d, B = int(case["d"]), int(case["B"])  # type: ignore[call-overload]
    k = min(d, int(case["k"]))  # type: ignore[call-overload]
    random = np.random.default_rng(int(case["seed"]))  # type: ignore[call-overload]
    C = np.linalg.qr(random.standard_normal((d, k)))[0] @ np.diag(random.uniform(0.5, 2, k))
    Y = random.standard_normal((B, d))
    if case["zero_messages"]:
        Y[::4] = 0
    eta = steps(str(case["steps"]), B, random)
    after, block = learn_block(C, Y, eta)
    factor, other, S = Factor.of(C), C, np.linalg.inv(C.T @ C)
    X = np.zeros((B, k))
    for s in range(B):
        X[s] = factor.C_pinv @ Y[s]
        factor, _ = krasulina.meyer(factor, Y[s], eta[s])
        other, S, _ = krasulina.sherman_morrison(other, S, Y[s], eta[s])
    assert close(after, factor.C, 1e-10)
    assert close(after, other, 1e-10)
    assert np.abs(block.X - X).max() <= 1e-9 * max(np.abs(X).max(), 1)
    assert close(block.N, after.T @ after, 1e-10)
    assert np.abs(block.S @ block.N - np.eye(k)).max() <= 1e-8
    assert close(block.S @ after.T, factor.C_pinv, 1e-8)


def test_blocks_of_any_size_make_the_same_factor() -> None:
    random = np.random.default_rng(0)
    C0, Y = random.standard_normal((30, 5)), random.standard_normal((192, 30))
    eta = 1 / np.arange(1, 193) ** 0.8
    results = []
    for B in (1, 3, 16, 64, 192):
        C = C0
        for s in range(0, 192, B):
            C, _ = learn_block(C, Y[s : s + B], eta[s : s + B])
        results.append(C)
    for C in results[1:]:
        assert close(C, results[0], 1e-11)


def test_jump_is_the_largest_growth_of_the_variance_along_x() -> None:
    C, y = np.eye(3)[:, :1], np.array([[2.0, 3.0, 0.0]])
    _, block = learn_block(C, y, np.array([0.5]))
    h = 0.5 / (1 + 0.5 * 4)
    assert block.jump == pytest.approx(h**2 * 9 * 4)
