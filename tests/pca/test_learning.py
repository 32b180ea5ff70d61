"""One pass learns the weighted covariance, exactly if K = d."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import algorithm1, axes, learning
from streampca.pca.arrays import F64
from streampca.pca.learning import BLOCK, LearningConfig, learn
from streampca.pca.losses import Losses
from streampca.pca.state import State
from tests.pca.streams import close, covariance, excess, gaussian, learned, one_pass, remaining_weights


def check(state: State, X: F64, retention: F64, center: bool, tolerance: float) -> None:
    """Covariance, mean, weight and total variance are NumPy's."""
    weights = remaining_weights(retention)
    exact = covariance(X, weights, center)
    assert np.linalg.norm(learned(state) - exact) <= tolerance * max(np.linalg.norm(exact), 1e-300)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=tolerance)
    assert state.weight == pytest.approx(weights.sum(), rel=1e-10)
    assert state.count == len(X)
    if center:
        assert state.mean == pytest.approx(np.average(X, axis=0, weights=weights), rel=1e-9, abs=1e-9)
    else:
        assert not state.mean.any()


streams = st.fixed_dictionaries(
    {
        "d": st.integers(1, 6),
        "n": st.integers(2, 700),
        "seed": st.integers(0, 2**32 - 1),
        "warm_up": st.sampled_from([None, 0, 1, 17]),
        "kind": st.sampled_from(["all", "half-life", "short", "mixed", "nothing"]),
        "center": st.booleans(),
        "offset": st.sampled_from([0.0, 3.0, 1e4]),
    }
)


def retention_of(kind: str, n: int, random: np.random.Generator) -> F64:
    """The retention λ of each message."""
    return {
        "all": np.ones(n),
        "half-life": np.full(n, 2 ** (-1 / 200)),
        "short": np.full(n, 2 ** (-1 / 7)),
        "mixed": np.where(random.random(n) < 0.02, random.random(n), 0.999),
        "nothing": np.where(random.random(n) < 0.3, 0.0, 1.0),
    }[kind]


@given(streams)
@settings(max_examples=120, deadline=None)
def test_with_as_many_columns_as_dimensions_the_covariance_is_exact(case: dict) -> None:  # type: ignore[type-arg]
    d, n = case["d"], case["n"]
    random = np.random.default_rng(case["seed"])
    offset = case["offset"] if case["center"] else 0.0
    X = random.standard_normal((n, d)) @ random.standard_normal((d, d)) + offset
    retention = retention_of(case["kind"], n, random)
    state, _ = one_pass(X, LearningConfig(d, d, 0, case["center"], warm_up=case["warm_up"]), retention)
    if remaining_weights(retention).sum() > 1.01:  # otherwise the covariance is zero up to rounding
        check(state, X, retention, case["center"], 1e-9 if offset < 10 else 1e-7)


def test_with_retention_zero_only_the_last_message_counts() -> None:
    X = gaussian(0, 300, np.ones(3))
    state, _ = one_pass(X, LearningConfig(3, 3), 0.0)
    assert state.weight == 1
    assert state.mean == pytest.approx(X[-1])
    assert state.total_variance == pytest.approx(0, abs=1e-25)
    assert state.rank == 0
    state, _ = one_pass(X, LearningConfig(3, 3, center=False), 0.0)
    assert close(learned(state), np.outer(X[-1], X[-1]), 1e-12)


def test_one_pass_comes_close_to_batch_pca_with_few_columns() -> None:
    X = gaussian(3, 20_000, 1 / np.arange(1, 41) ** 0.7, offset=2.0)
    exact = covariance(X)
    state, _ = one_pass(X, LearningConfig(40, 5))
    assert excess(axes.principal(state.C, 5)[0], exact) <= 2e-4
    assert axes.principal(state.C, 5)[1] == pytest.approx(np.linalg.eigvalsh(exact)[::-1][:5], rel=0.02)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-10)


def test_a_drifting_stream_is_followed_like_the_exact_weighted_covariance() -> None:
    spectrum = np.concatenate([[5, 4, 3.0], np.full(27, 0.3)])
    X = np.vstack([gaussian(seed, 6000, spectrum) for seed in (1, 2)])
    retention = np.full(len(X), 2 ** (-1 / 1000))
    state, _ = one_pass(X, LearningConfig(30, 3), retention)
    now = covariance(X[6000:])
    exact = np.linalg.eigh(covariance(X, remaining_weights(retention)))[1][:, :-4:-1].T
    assert excess(axes.principal(state.C, 3)[0], now) <= excess(exact, now) + 5e-3


def test_rotating_the_data_rotates_the_model() -> None:
    X = gaussian(4, 3000, 1 / np.arange(1, 13.0), turned=False)
    turn = np.linalg.qr(np.random.default_rng(9).standard_normal((12, 12)))[0]
    plain, _ = one_pass(X, LearningConfig(12, 3, 2))
    turned, _ = one_pass(X @ turn, LearningConfig(12, 3, 2))
    assert close(turn @ learned(turned) @ turn.T, learned(plain), 1e-9)


@pytest.mark.parametrize("center", [True, False])
def test_every_state_is_consistent(center: bool) -> None:
    """N = CᵀC and C†C = I after every block, also between rotations onto the axes, and with spare columns."""
    X = gaussian(5, 7000, 1 / np.arange(1, 21.0), offset=0.3)
    config = LearningConfig(20, 4, 3, center)
    state, start, ranks = State.empty(20), 0, []
    while start < len(X):
        V = X[start : start + config.next_block(state)]
        state, _ = learn(state, V, np.ones(len(V)), config)
        start += len(V)
        assert close(state.N, state.C.T @ state.C, 1e-11)
        assert np.abs(state.C_pinv @ state.C - np.eye(state.rank)).max() <= 1e-10
        ranks.append(state.rank)
    dropped = ranks.index(7)
    assert ranks == [20] * dropped + [7] * (len(ranks) - dropped)
    assert config.early < config.start + dropped * BLOCK <= config.settled


@pytest.mark.slow
def test_models_with_many_columns_take_longer_stretches() -> None:
    """The stretch depends on d and K alone, so the result does not depend on how the messages arrive."""
    X = gaussian(17, 700, 1 / np.arange(1, 101.0))
    for k, stretch in ((85, 64), (86, 128), (100, 128)):
        config = LearningConfig(100, k, 10)
        state, scores = one_pass(X, config)
        assert [len(s.norm) for s in scores[1:]] == [BLOCK, 700 - 200 - BLOCK]
        assert (config.next_block(state), config.next_block(State.empty(60))) == (BLOCK, 200)
        assert config.stretch == stretch
        check(state, X, np.ones(700), True, 1e-9 if k >= 90 else 1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_length_of_a_stretch_affects_only_rounding(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = gaussian(18, 2000, 1 / np.arange(1, 21.0), offset=0.5)
    states = []
    for length in (1, 7, 64, 1000):
        monkeypatch.setattr(learning, "STRETCH", length)
        states.append(one_pass(X.astype(dtype), LearningConfig(20, 4, 3, dtype=dtype), 2 ** (-1 / 500))[0])
    for state in states[1:]:
        assert close(learned(state), learned(states[0]), 1e-12 if dtype == "float64" else 1e-4)


class TestEdges:
    """Degenerate and extreme streams."""

    @pytest.mark.parametrize("value", [0.0, 5.0, -3e-9, 1e150, 1e-150])
    @pytest.mark.parametrize("center", [True, False])
    def test_a_constant_stream(self, value: float, center: bool) -> None:
        X = np.full((1000, 4), value)
        state, scores = one_pass(X, LearningConfig(4, 2, center=center))
        assert state.mean == pytest.approx(np.full(4, value if center else 0.0), rel=1e-12)
        assert state.total_variance == pytest.approx(0.0 if center else 4 * value**2, rel=1e-12, abs=1e-29 * value**2)
        assert np.isfinite(state.C).all()
        assert all(np.isfinite(s.residual).all() for s in scores)
        if not center and value:
            assert state.rank == 1

    def test_a_single_message(self) -> None:
        state, scores = one_pass(np.array([[1.0, 2.0]]), LearningConfig(2, 1))
        assert state.mean == pytest.approx([1, 2])
        assert (state.rank, state.total_variance, state.count) == (0, 0.0, 1)
        assert len(scores[0].residual) == 0

    def test_the_rank_follows_the_directions_of_the_data(self) -> None:
        """The rank grows with the data, and new directions lose nothing."""
        random = np.random.default_rng(2)
        few = random.standard_normal((1500, 2)) @ random.standard_normal((2, 20))
        more = random.standard_normal((1500, 5)) @ random.standard_normal((5, 20))
        early, _ = one_pass(few, LearningConfig(20, 3, 5))
        assert early.rank == 2
        X = np.vstack([few, more])
        state, _ = one_pass(X, LearningConfig(20, 3, 5))
        assert state.rank == 7
        check(state, X, np.ones(3000), True, 1e-10)
        full = np.vstack([X, gaussian(3, 9000, 1 / np.arange(1, 21.0))])
        assert one_pass(full[:4000], LearningConfig(20, 3, 5))[0].rank == 20  # spare columns, while much is new
        state, _ = one_pass(full, LearningConfig(20, 3, 5))
        assert state.rank == 8
        assert excess(axes.principal(state.C, 3)[0], covariance(full)) <= 1e-3

    @pytest.mark.parametrize("scale", [1e-150, 1e-100, 1e100, 1e150])
    def test_extreme_scales(self, scale: float) -> None:
        X = gaussian(4, 1500, np.array([1, 0.3, 0.1, 0.03]))
        plain, _ = one_pass(X, LearningConfig(4, 2, 1))
        state, _ = one_pass(X * scale, LearningConfig(4, 2, 1))
        assert close(learned(state) / scale / scale, learned(plain), 1e-11)
        assert state.total_variance == pytest.approx(plain.total_variance * scale**2, rel=1e-11)

    def test_scaling_by_a_power_of_two_is_exact(self) -> None:
        X = gaussian(4, 1500, np.array([1, 0.3, 0.1, 0.03]))
        plain, _ = one_pass(X, LearningConfig(4, 2, 1))
        state, _ = one_pass(X * 2.0**300, LearningConfig(4, 2, 1))
        assert np.array_equal(state.C, plain.C * 2.0**300)

    def test_the_largest_value_is_safe(self) -> None:
        for dtype in ("float64", "float32"):
            config = LearningConfig(50, 3, dtype=dtype)
            X = config.largest_value * np.sign(gaussian(5, 1000, np.ones(50)))
            state, scores = one_pass(X.astype(dtype), config)
            assert np.isfinite(state.C).all()
            assert np.isfinite(state.total_variance)
            assert np.isfinite([s.norm.sum() for s in scores]).all()

    def test_a_stream_whose_squares_underflow_counts_as_constant(self) -> None:
        state, _ = one_pass(1e-170 * gaussian(6, 500, np.ones(3)), LearningConfig(3, 2))
        assert state.rank == 0
        assert state.total_variance == 0

    @pytest.mark.parametrize("turned", [True, False])
    def test_features_with_scales_a_million_times_apart(self, turned: bool) -> None:
        """A direction is accurate to about eps·(σ₁/σ)², here 1e-4."""
        sizes = np.array([1e3, 1, 1e-3, 30, 0.03])
        X = gaussian(7, 20_000, np.ones(5))
        X = (X @ np.random.default_rng(1).standard_normal((5, 5)) if turned else X) * sizes
        state, _ = one_pass(X, LearningConfig(5, 5))
        exact = covariance(X)
        assert close(learned(state), exact, 1e-10)
        unit = np.sqrt(np.diag(exact))
        assert np.abs((learned(state) - exact) / np.outer(unit, unit)).max() <= 1e-3

    @pytest.mark.parametrize("size", [10.0, 1e3, 1e5, 1e7])
    @pytest.mark.parametrize("where", [250, 1500, 2990])
    def test_one_huge_outlier(self, size: float, where: int) -> None:
        X = gaussian(8, 3000, 10 ** np.linspace(0, -2, 30))
        X[where] *= size
        exact = covariance(X)
        state, _ = one_pass(X, LearningConfig(30, 30))
        assert close(learned(state), exact, 1e-9)
        state, _ = one_pass(X, LearningConfig(30, 4, 6))
        assert excess(axes.principal(state.C, 4)[0], exact) <= 0.02
        assert close(state.N, state.C.T @ state.C, 1e-11)

    def test_a_direction_that_vanishes_and_returns(self) -> None:
        X = gaussian(9, 45_000, np.array([2.0, 1, 1, 0.5]), turned=False)
        X[3000:40_000, 0] = 0
        retention = np.full(len(X), 2 ** (-1 / 100))
        dead, _ = one_pass(X[:40_000], LearningConfig(4, 4), retention[:40_000])
        assert dead.rank == 3
        state, _ = one_pass(X, LearningConfig(4, 4), retention)
        check(state, X, retention, True, 1e-10)

    def test_a_stream_that_becomes_zero_decays_to_zero(self) -> None:
        X = gaussian(10, 30_000, np.ones(3))
        X[1000:] = 0
        state, scores = one_pass(X, LearningConfig(3, 2), 2 ** (-1 / 20))
        assert state.rank == 0
        assert np.isfinite(np.concatenate([s.residual for s in scores])).all()
        again, _ = one_pass(np.vstack([X, X[:500]]), LearningConfig(3, 2), 2 ** (-1 / 20))
        assert close(learned(again), covariance(X[:500], remaining_weights(np.full(500, 2 ** (-1 / 20)))), 1e-6)

    def test_a_large_offset_costs_no_precision_at_the_start(self) -> None:
        X = gaussian(11, 150, np.array([1.0, 0.1, 0.01]))
        for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-4)):
            offset = (X + 1024).astype(dtype)
            state, _ = one_pass(offset, LearningConfig(3, 3, dtype=dtype))
            exact = covariance(offset)
            assert close(learned(state), exact, tolerance)
            assert state.total_variance == pytest.approx(np.trace(exact), rel=tolerance)


class TestFloat32:
    """The factor in single precision, its small matrices in double."""

    eps = float(np.finfo(np.float32).eps)

    def test_exact_to_single_precision(self) -> None:
        X = gaussian(0, 5000, np.array([3.0, 1, 0.3, 0.1]), offset=1.0).astype(np.float32)
        state, _ = one_pass(X, LearningConfig(4, 4, dtype="float32"))
        assert state.C.dtype == np.float32
        check(state, X, np.ones(5000), True, 100 * self.eps)

    @pytest.mark.parametrize("scale", [1e-15, 1e15])
    def test_scales(self, scale: float) -> None:
        X = (scale * gaussian(1, 2000, np.array([1, 0.3, 0.1, 0.03]))).astype(np.float32)
        state, _ = one_pass(X, LearningConfig(4, 4, dtype="float32"))
        assert close(learned(state), covariance(X), 100 * self.eps)

    def test_as_good_as_double_precision(self) -> None:
        X = gaussian(2, 10_000, 10 ** np.linspace(0, -3, 40))
        exact = covariance(X)
        losses = [
            excess(axes.principal(one_pass(X.astype(t), LearningConfig(40, 8, dtype=t))[0].C, 8)[0], exact)
            for t in ("float64", "float32")
        ]
        assert losses[1] == pytest.approx(losses[0], rel=0.05, abs=1e-6)


def test_the_factor_is_rotated_onto_its_axes_regularly() -> None:
    X = gaussian(16, 200 + 40 * BLOCK, 1 / np.arange(1, 9.0))
    turned = []
    for blocks in range(41):
        state, _ = one_pass(X[: 200 + blocks * BLOCK], LearningConfig(8, 2, 2))
        off_diagonal = state.N - np.diag(np.diag(state.N))
        if not off_diagonal.any():
            assert (np.diff(np.diag(state.N)) < 0).all()
            turned.append(blocks)
    absorbed = [0, 1, 2, 3, 4]
    assert turned == [*absorbed, 16, 32]


def test_the_gram_matrix_does_not_drift_from_the_factor() -> None:
    """C and N are updated separately; after 1,600 blocks they still agree, in both precisions."""
    X = gaussian(12, 100_000, np.array([3.0, 2, 1, 0.5, 0.2, 0.1, 0.1, 0.1]))
    for dtype, tolerance in (("float64", 1e-13), ("float32", 1e-6)):
        state, _ = one_pass(X.astype(dtype), LearningConfig(8, 3, 2, dtype=dtype), 2 ** (-1 / 500))
        C = state.C.astype(np.float64)
        assert close(state.N, C.T @ C, tolerance)


class TestBits:
    """The same messages give the same bits."""

    X = gaussian(13, 1500, 1 / np.arange(1, 38.0), offset=0.5)

    @pytest.mark.parametrize("center", [True, False])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_for_any_memory_layout(self, center: bool, dtype: str) -> None:
        X = self.X.astype(dtype)
        config = LearningConfig(37, 5, 6, center, dtype)
        plain, plain_scores = one_pass(X, config)
        size = X.itemsize
        raw = bytearray(X.nbytes + 64)
        for shift in (1, size, 3 * size):  # the first is not aligned to the element size
            copy = np.frombuffer(raw, dtype, X.size, shift).reshape(X.shape)
            copy[:] = X
            self._same(one_pass(copy, config), (plain, plain_scores))
        wide = np.zeros((len(X), 80), dtype)
        wide[:, 3:40] = X
        for other in (np.asfortranarray(X), wide[:, 3:40], X[::-1].copy()[::-1], np.repeat(X, 2, axis=0)[::2]):
            self._same(one_pass(other, config), (plain, plain_scores))

    @staticmethod
    def _same(one: tuple[State, list[Losses]], other: tuple[State, list[Losses]]) -> None:
        for name in ("C", "N", "mean", "weight", "total_variance", "count", "blocks"):
            assert np.array_equal(getattr(one[0], name), getattr(other[0], name)), name
        for a, b in zip(one[1], other[1], strict=True):
            assert np.array_equal(a.residual, b.residual)
            assert np.array_equal(a.norm, b.norm)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("center", [True, False])
    @pytest.mark.parametrize("case", ["plain", "outliers", "forgetting", "of low rank", "new directions"])
    def test_for_any_number_of_blocks_at_once(self, case: str, center: bool, dtype: str) -> None:
        """Across rotations of the factor, absorbed blocks and a partial last block."""
        n = 200 + 40 * BLOCK + 17
        X = gaussian(8, n, 1 / np.arange(1, 21.0) * (np.arange(20) < 7 if case == "of low rank" else 1), offset=1.0)
        retention, config = np.ones(n), LearningConfig(20, 4, 4, center, dtype)
        if case == "outliers":
            X[[300, 3000, 3001, 9000]] *= 1e6
        if case == "new directions":  # absorbed, learned with spare columns, and without them again
            X[:1000, 10:] = 0
        if case == "forgetting":
            retention[2000:2600] = 0.97  # too large a weight for Algorithm 1
            retention[5000] = 0.0
        X = X.astype(dtype)
        alone, scores = one_pass(X, config, retention)
        for cut in (1, 7, 33, 100):
            state = learn(State.empty(20, dtype), X[:200], retention[:200], config)[0]
            found = []
            for start in range(200, n, cut * BLOCK):
                end = start + cut * BLOCK
                state, together = learn(state, X[start:end], retention[start:end], config)
                found.append(together)
            for one, other in zip((state.C, state.N, state.mean), (alone.C, alone.N, alone.mean), strict=True):
                assert one.tobytes() == other.tobytes()
            for name in ("weight", "total_variance", "count", "blocks", "older"):
                assert getattr(state, name) == getattr(alone, name)
            for i in (0, 1):
                one, other = (np.concatenate([score[i] for score in each]) for each in (found, scores))
                assert np.array_equal(one, other)

    def test_learning_does_not_modify_its_arguments(self) -> None:
        config = LearningConfig(37, 5)
        state, _ = one_pass(self.X, config)
        before = [np.copy(a) for a in (state.C, state.N, state.mean)]
        V, kept = self.X[:BLOCK].copy(), np.ones(BLOCK)
        learn(state, V, kept, config)
        assert all(np.array_equal(a, b) for a, b in zip(before, (state.C, state.N, state.mean), strict=True))
        assert np.array_equal(V, self.X[:BLOCK])


class TestScores:
    """Each message is scored by the model before it."""

    @pytest.mark.parametrize("retention", [1.0, 2 ** (-1 / 300)])
    @pytest.mark.parametrize("center", [True, False])
    def test_against_a_plain_loop(self, retention: float, center: bool) -> None:
        """About the mean and by the first k columns before the message; each block starts with principal axes."""
        self._check(retention, center, absorbed=False)

    @pytest.mark.parametrize("retention", [2 ** (-1 / 20), 0.0])
    @pytest.mark.parametrize("center", [True, False])
    def test_absorbed_blocks_are_scored_with_the_axes_before_the_block(self, retention: float, center: bool) -> None:
        self._check(retention, center, absorbed=True)

    @staticmethod
    def _check(retention: float, center: bool, absorbed: bool) -> None:
        X = gaussian(14, 2500, 1 / np.arange(1, 16.0), offset=1.0)
        config = LearningConfig(15, 3, 4, center, warm_up=100)
        state, start, w, m = State.empty(15), 0, 0.0, np.zeros(15)
        while start < len(X):
            V = X[start : start + config.next_block(state)]
            after, scores = learn(state, V, np.full(len(V), retention), config)
            C = axes.principal(state.C, state.rank)[0].T * np.sqrt(axes.principal(state.C, state.rank)[1])
            S = np.linalg.inv(C.T @ C)
            for s, v in enumerate(V):
                w = retention * w + 1
                y = v - m
                if state.count:
                    first = np.linalg.qr(C[:, :3])[0]
                    r = y - first @ (first.T @ y)
                    assert scores.norm[s] == pytest.approx(y @ y, rel=1e-9)
                    assert scores.residual[s] == pytest.approx(r @ r, rel=1e-7, abs=1e-9 * (y @ y))
                    if not absorbed:
                        C, S, _ = algorithm1.sherman_morrison(C, S, np.sqrt(1 - center / w) * y, 1 / w)
                m = m + y / w if center else m
            state, start = after, start + len(V)

    def test_the_first_block_has_no_scores(self) -> None:
        _, scores = one_pass(self._steady(), LearningConfig(6, 2))
        assert len(scores[0].norm) == len(scores[0].residual) == 0
        assert all(len(s.norm) == BLOCK for s in scores[1:-1])

    @staticmethod
    def _steady() -> F64:
        return gaussian(15, 5000, np.array([3.0, 2, 1, 0.5, 0.5, 0.1]))


@pytest.mark.parametrize(("k", "columns"), [(1, 11), (5, 15), (16, 26), (20, 32), (50, 80), (100, 160), (190, 200)])
def test_the_default_oversampling_grows_with_the_components(k: int, columns: int) -> None:
    assert LearningConfig(200, k).columns == columns
    assert LearningConfig(200, k, 0).columns == k
