"""The free gauge is Algorithm 1 with the paper's step sizes, at every scale of the data."""

import numpy as np
import pytest

from streampca.pca.arrays import F64
from streampca.pca.free_gauge import FreeGauge, PowerStep
from streampca.pca.learning import LearningConfig
from streampca.pca.pending import Messages
from tests.pca.streams import close, gaussian


def projector(C: F64) -> F64:
    Q = np.linalg.qr(C)[0]
    return np.asarray(Q @ Q.T)


@pytest.mark.parametrize("k", [5, 15])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e3, 1e6, 1e8, 1e12])
def test_it_equals_the_loop_over_messages_at_every_scale(scale: float, k: int) -> None:
    """The factor starts orthonormal, so that with large data it grows by many orders of magnitude in its first block.

    In long double precision this loop and Meyer's update are found to be off by up to 1e-9 themselves.
    """
    X = scale * gaussian(1, 700, 1 / np.arange(1, 31.0) ** 0.5)
    C = C0 = np.linalg.qr(np.random.default_rng(2).standard_normal((30, k)))[0]
    step = PowerStep(1.0)
    gauge = FreeGauge(LearningConfig(30, k, 0, center=False), C0, step)
    state, _ = gauge.learn(gauge.empty(), Messages(X, np.ones(len(X))))
    for y, eta in zip(X, step(np.arange(1, len(X) + 1)), strict=True):
        Q, R = np.linalg.qr(C)
        x = np.linalg.solve(R, Q.T @ y)
        C = C - eta / (1 + eta * (x @ x)) * np.outer(C @ x - y, x)
    assert close(projector(state.state.C), projector(C), 1e-8)
    assert close(state.state.C, C, 1e-8)
    assert state.state.count == len(X)
