"""A block equals Algorithm 1 message by message."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from streampca.pca import algorithm1
from streampca.pca.arrays import F64
from streampca.pca.blocked import jit, recurrence
from tests.pca.streams import close

learn_padded = jit.compiled(lambda P, G, S, eta: recurrence.learn_padded(P, G, S, eta))  # for calls from Python


class BlockResult(NamedTuple):
    """The result of a block."""

    C: F64
    X: F64  # each message's x
    P: F64  # each message's Cᵀy for the C it met
    S: F64  # (CᵀC)⁻¹ at the end


def learn(C: F64, Y: F64, eta: F64) -> BlockResult:
    """Learn the block Y (b, d)."""
    k = C.shape[1]
    X, Z, p, S = learn_padded(Y @ C, Y @ Y.T, np.linalg.inv(C.T @ C), eta)
    X, Z, p = (padded[:, :k] for padded in (X, Z, p))
    return BlockResult(C @ (np.eye(k) - X.T @ Z) + Y.T @ Z, X, p, S[:k, :k])


@given(
    d=st.integers(1, 40),
    k=st.integers(1, 12),
    B=st.integers(1, 64),
    seed=st.integers(0, 2**32 - 1),
    steps=st.sampled_from(["power", "weight", "wild", "zeros", "huge"]),
    zero_messages=st.booleans(),
)
@example(d=25, k=1, B=29, seed=37, steps="huge", zero_messages=False)  # S shrinks to 1e-5
@settings(max_examples=150, deadline=None)
def test_a_block_equals_algorithm_1(d: int, k: int, B: int, seed: int, steps: str, zero_messages: bool) -> None:
    k, random, t = min(d, k), np.random.default_rng(seed), np.arange(1, B + 1)
    C = np.linalg.qr(random.standard_normal((d, k)))[0] @ np.diag(random.uniform(0.5, 2, k))
    Y = random.standard_normal((B, d))
    if zero_messages:
        Y[::4] = 0
    eta = {
        "power": 1 / t**0.8,
        "weight": 1 / (100.0 + t),
        "wild": 10 ** random.uniform(-3, 1, B),
        "zeros": np.where(t % 3, 0.1, 0.0),
        "huge": np.full(B, 1e4),
    }[steps]
    got = learn(C, Y, eta)
    plain, C_pinv, other, S = C, np.linalg.pinv(C), C, np.linalg.inv(C.T @ C)
    X, P = np.zeros((B, k)), np.zeros((B, k))
    for s in range(B):
        X[s], P[s] = C_pinv @ Y[s], plain.T @ Y[s]
        plain, C_pinv, _ = algorithm1.meyer(plain, C_pinv, Y[s], eta[s])
        other, S, _ = algorithm1.sherman_morrison(other, S, Y[s], eta[s])
    assert close(got.C, plain, 1e-10)
    assert close(got.C, other, 1e-10)
    assert np.abs(got.X - X).max() <= 1e-9 * max(np.abs(X).max(), 1)
    assert np.abs(got.P - P).max() <= 1e-9 * max(np.abs(P).max(), 1)
    assert close(got.S @ (got.C.T @ got.C), np.eye(k), 1e-7)
    assert close(got.S, S, 1e-9)


LEARN = """
import hashlib
import numpy as np
from tests.pca.blocked.test_recurrence import learn_padded
random, digest = np.random.default_rng(0), hashlib.sha256()
for K in (1, 2, 5, 8, 11, 16) * 20:
    C, Y = random.standard_normal((30, K)), random.standard_normal((256, 30))
    for result in learn_padded(Y @ C, Y @ Y.T, np.linalg.inv(C.T @ C), np.full(256, 0.03)):
        digest.update(result.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_all_processes_compute_the_same_bits() -> None:
    """Arrays lie elsewhere in each process: that must not decide which of two compiled loops runs."""
    one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LEARN]
    processes = [subprocess.Popen(command, env=one_thread, stdout=subprocess.PIPE) for _ in range(6)]
    assert len({process.communicate()[0] for process in processes}) == 1
    assert all(process.returncode == 0 for process in processes)
