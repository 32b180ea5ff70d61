"""The blocked update equals the plain loop (plain.py), block for block."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca.arrays import F64
from streampca.pca.blocked import plain
from streampca.pca.blocked.centring import weights
from streampca.pca.blocked.update import BlockConfig, Iterate, Weights, learn
from streampca.pca.free_gauge import FreeGauge, FreeState, PowerStep
from streampca.pca.learning import BLOCK, LearningConfig
from streampca.pca.learning import learn as learn_stream
from streampca.pca.losses import Losses
from streampca.pca.pending import Messages
from streampca.pca.state import State
from tests.pca.streams import close, gaussian

cases = st.fixed_dictionaries(
    {
        "d": st.integers(2, 40),
        "components": st.integers(1, 12),
        "oversampling": st.integers(0, 6),
        "B": st.integers(1, BLOCK),
        "stretch": st.sampled_from([7, 64, 128]),
        "half_life": st.sampled_from([None, 60.0, 1000.0]),
        "center": st.booleans(),
        "offset": st.sampled_from([0.0, 2.0]),
        "seed": st.integers(0, 2**32 - 1),
    }
)


class Case:
    """A state that has learned 600 messages, and a block of more, of a stream with a decaying spectrum."""

    def __init__(self, case: dict) -> None:  # type: ignore[type-arg]
        self.d, self.B, self.stretch, self.center = case["d"], case["B"], case["stretch"], case["center"]
        self.k = min(case["components"], self.d)
        self.config = LearningConfig(self.d, self.k, case["oversampling"], self.center, warm_up=100)
        X = gaussian(case["seed"], 600 + self.B, 1.5 / np.arange(1, self.d + 1) ** 0.4, case["offset"])
        kept = np.full(len(X), 1.0 if case["half_life"] is None else 2 ** (-1 / case["half_life"]))
        self.state, _ = learn_stream(State.empty(self.d), X[:600], kept[:600], self.config)
        self.V, self.retention = X[600:], kept[600:]

    def blocked(self, before: Iterate, weighting: Weights, unit: bool) -> tuple[Iterate, Losses, F64]:
        return learn(self.V, before, weighting, BlockConfig(self.k, self.B, self.stretch, unit))

    def weights(self) -> Weights:
        return weights(self.state.weight, self.retention, self.B, self.center)


def same(scores: Losses, others: Losses) -> None:
    assert scores.norm == pytest.approx(others.norm, rel=1e-12)
    assert np.abs(scores.residual - others.residual).max() <= 1e-12 * others.norm.max()


@given(cases)
@settings(max_examples=150, deadline=None)
def test_a_block_in_the_unit_gauge_equals_the_plain_loop(case: dict) -> None:  # type: ignore[type-arg]
    block = Case(case)
    state, C = block.state, block.state.C
    before = Iterate(C, state.N, np.eye(state.rank), state.mean)
    after, scores, squares = block.blocked(before, block.weights(), unit=True)
    expected, expected_scores = plain.learn_block(state, block.V, block.retention, block.k, block.center)
    assert len(squares) == 1
    assert close(after.C @ after.C.T, expected.C @ expected.C.T, 2e-14)
    assert close(np.abs(after.C.T @ expected.C), expected.N, 1e-9)  # the columns up to sign, also of close variances
    assert close(after.N, expected.N, 2e-14)
    assert np.array_equal(after.M, np.eye(state.rank))
    assert after.mean == pytest.approx(expected.mean, rel=1e-13, abs=1e-13)
    same(scores, expected_scores)
    assert block.weights().total[0] == expected.weight
    total_variance = block.weights().past[0] * state.total_variance + squares[0]
    assert total_variance == pytest.approx(expected.total_variance, rel=1e-13)


@given(cases, st.floats(0.1, 3), st.floats(0.5, 1))
@settings(max_examples=100, deadline=None)
def test_a_block_in_the_free_gauge_equals_the_plain_loop(case: dict, eta0: float, gamma: float) -> None:  # type: ignore[type-arg]
    block = Case(case)
    eta = PowerStep(eta0, gamma)(np.arange(1, block.B + 1))
    random = np.random.default_rng(case["seed"])
    orthonormal = np.linalg.qr(random.standard_normal((block.d, block.state.rank)))[0]
    C = orthonormal * random.uniform(0.5, 2, block.state.rank)
    before = Iterate(C, C.T @ C, np.diag(random.uniform(0.5, 2, C.shape[1])), block.state.mean)
    weighting = block.weights()
    after, scores, _ = block.blocked(before, weighting._replace(eta=eta), unit=False)
    remaining_weights = weights(block.state.weight, block.retention, block.B).eta
    expected, expected_scores = plain.learn_messages(block.V, before, remaining_weights, eta, block.k, block.center)
    assert close(after.C, expected.C, 1e-12)
    assert close(after.N, expected.N, 1e-12)
    assert close(after.C @ after.M @ after.C.T, expected.C @ expected.M @ expected.C.T, 1e-12)
    assert after.mean == pytest.approx(expected.mean, rel=1e-13, abs=1e-13)
    same(scores, expected_scores)


@pytest.mark.parametrize("center", [True, False])
def test_a_stream_of_blocks_equals_the_plain_loop(center: bool) -> None:
    """Over twelve blocks after the first: rounding does not build up."""
    X = gaussian(1, 200 + 12 * BLOCK, 1.5 / np.arange(1, 31) ** 0.5, offset=1.0)
    config = LearningConfig(30, 5, 5, center)
    state = learn_stream(State.empty(30), X[:200], np.ones(200), config)[0]
    expected = state
    for start in range(200, len(X), BLOCK):
        V = X[start : start + BLOCK]
        state, scores = learn_stream(state, V, np.ones(BLOCK), config)
        expected, expected_scores = plain.learn_block(expected, V, np.ones(BLOCK), 5, center)
        assert close(state.C @ state.C.T, expected.C @ expected.C.T, 1e-13)
        same(scores, expected_scores)
    for name in ("weight", "count", "blocks"):
        assert getattr(state, name) == getattr(expected, name)
    assert state.total_variance == pytest.approx(expected.total_variance, rel=1e-12)


def test_a_factor_that_loses_full_rank_in_the_free_gauge_is_reported() -> None:
    C = np.ones((4, 2))
    broken = FreeState(State(C, C.T @ C, np.zeros(4), 10.0, 1.0, 10, 0), np.eye(2))
    with pytest.raises(np.linalg.LinAlgError, match="linearly dependent"):
        FreeGauge(LearningConfig(4, 2, 0), C, PowerStep()).learn(broken, Messages(np.eye(4), np.ones(4)))
