"""Principal axes and their signs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import axes, scoring
from streampca.pca.axes import leading_model, model_of
from streampca.pca.learning import LearningConfig
from tests.pca.streams import close, covariance, gaussian, one_pass, state_of

factors = st.tuples(st.integers(1, 15), st.integers(1, 15), st.integers(0, 2**32 - 1)).map(
    lambda t: np.random.default_rng(t[2]).standard_normal((max(t[:2]), min(t[:2])))
)


@given(factors)
@settings(max_examples=60, deadline=None)
def test_axes_are_the_eigenvectors_of_the_covariance(C: np.ndarray) -> None:
    rows, variance = axes.principal(state_of(C), C.shape[1])
    assert (rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)] > 0).all()
    assert np.abs(rows @ rows.T - np.eye(len(rows))).max() <= 1e-12
    assert (np.diff(variance) <= 1e-12).all()
    assert close((rows.T * variance) @ rows, C @ C.T, 1e-12)


@given(factors)
@settings(max_examples=60, deadline=None)
def test_leading_directions_of_a_factor(F: np.ndarray) -> None:
    C = axes.leading(F, 4, np.float64)
    variance = np.vecdot(C.T, C.T)
    exact = np.linalg.eigvalsh(F @ F.T)[::-1][:4]
    assert variance == pytest.approx(exact[: len(variance)], rel=1e-9)
    assert np.abs(C.T @ C - np.diag(variance)).max() <= 1e-9 * variance[0]
    assert close(C @ C.T @ C, F @ F.T @ C, 1e-9)


def test_axes_beyond_the_rank_complete_an_orthonormal_basis() -> None:
    for C in (np.zeros((5, 0)), np.zeros((5, 2)), np.eye(5)[:, :1], np.eye(5)[:, [1, 1]]):
        rows, variance = axes.principal(state_of(C), 5)
        assert np.abs(rows @ rows.T - np.eye(5)).max() <= 1e-12
        assert close((rows.T * variance) @ rows, C @ C.T, 1e-12)
        assert np.array_equal(rows, axes.principal(state_of(C), 5)[0])


def test_signs_are_stable_between_versions() -> None:
    """If two entries have nearly the same size, the sign convention alone would flip between versions."""
    first = np.array([[0.6, -0.6 - 1e-9, 0.5], [0.1, 0.2, 0.97]])
    second = np.array([[0.6 + 1e-8, -0.6, 0.5], [-0.1, -0.2, -0.97]])
    own = axes._orient(first)
    assert own[0, 0] < 0
    kept = axes.keep_signs(axes._orient(second), own)
    assert ((kept * own).sum(axis=1) > 0).all()


def test_signs_are_stable_when_axes_swap() -> None:
    reference = -np.eye(4)[:3]
    now = np.eye(4)[[1, 0, 2]]
    kept = axes.keep_signs(now, reference)
    assert np.array_equal(kept, -now)


class TestModel:
    """Coordinates, residuals and reconstructions."""

    X = gaussian(2, 2000, np.array([3.0, 2, 1, 0.2]), offset=1.0)
    model = model_of(one_pass(X, LearningConfig(4, 2))[0], 2)

    def test_principal_coordinates_have_the_explained_variances(self) -> None:
        Z, _ = self.model.project(self.X)
        assert np.abs(covariance(Z) - np.diag(self.model.explained_variance)).max() <= 1e-10

    def test_whitened_coordinates_have_variance_one(self) -> None:
        Z, _ = self.model.project(self.X, "whitened")
        assert np.abs(covariance(Z) - np.eye(2)).max() <= 1e-10

    @pytest.mark.parametrize("basis", ["principal", "whitened"])
    def test_reconstruction_is_the_nearest_point_of_the_subspace(self, basis: str) -> None:
        Z, residual = self.model.project(self.X, basis)  # type: ignore[arg-type]
        back = self.model.reconstruct(Z, basis)  # type: ignore[arg-type]
        assert residual == pytest.approx(((self.X - back) ** 2).sum(axis=1), rel=1e-9, abs=1e-12)
        again, none_left = self.model.project(back, basis)  # type: ignore[arg-type]
        assert again == pytest.approx(Z, rel=1e-9, abs=1e-10)
        assert none_left == pytest.approx(0, abs=1e-20)

    def test_ratios_are_relative_to_the_total_variance(self) -> None:
        exact = np.linalg.eigvalsh(covariance(self.X))[::-1]
        assert self.model.explained_variance_ratio == pytest.approx(exact[:2] / exact.sum(), rel=1e-9)

    def test_the_whitened_coordinate_of_a_component_without_variance_is_zero(self) -> None:
        line = np.outer(np.arange(500.0), np.ones(3))
        model = model_of(one_pass(line, LearningConfig(3, 2))[0], 2)
        Z, residual = model.project(line, "whitened")
        assert not Z[:, 1].any()
        assert residual == pytest.approx(0, abs=1e-15 * 500**2)
        assert model.explained_variance[1] == 0
        constant = model_of(one_pass(np.ones((9, 3)), LearningConfig(3, 2))[0], 2)
        assert not constant.explained_variance_ratio.any()


@pytest.mark.parametrize(("rank", "dtype"), [(0, "float64"), (2, "float64"), (9, "float64"), (9, "float32")])
def test_the_quick_model_is_the_served_one_up_to_signs_and_arbitrary_axes(rank: int, dtype: str) -> None:
    X = gaussian(0, 900, np.array([9.0, 7, 5, 3, 2, 1, 1, 1, 1]) * (np.arange(9) < rank), offset=2.0, turned=False)
    state, _ = one_pass(X.astype(dtype), LearningConfig(9, 4, 2, dtype=dtype))
    quick, served = leading_model(axes.turned(state, 4), 4), model_of(state, 4)
    k = min(rank, 4)
    assert quick.n_components == k
    assert quick.explained_variance == pytest.approx(served.explained_variance[:k], rel=1e-6)
    assert close(quick.components.T @ quick.components, served.components[:k].T @ served.components[:k], 1e-6)
    assert (quick.total_variance, quick.weight) == (served.total_variance, served.weight)
    assert np.isfinite(scoring.score(quick, X[:5]).score).all()
