"""Projection by a model, beside the formulas of its parts."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.pca.model import Basis, Model
from tests.pca.streams import with_gaps

SIZES = st.tuples(st.integers(1, 9), st.integers(0, 12)).map(lambda size: (size[0], sum(size)))  # k ≤ d


def model(k: int, d: int, seed: int, dtype: type = np.float64) -> Model:
    """A model with arbitrary axes and mean."""
    random = np.random.default_rng(seed)
    axes = np.linalg.qr(random.standard_normal((d, k)))[0].T
    return Model(axes.astype(dtype), np.arange(k, 0, -1.0), random.normal(size=d).astype(dtype), 2.0 * d, 100.0)


@given(SIZES, st.integers(0, 100), st.floats(-9, 9), st.integers(0, 2**32 - 1))
def test_residuals_are_squared_distances_however_small(size: tuple[int, int], n: int, size10: float, seed: int) -> None:
    fitted = model(*size, seed)
    random = np.random.default_rng(seed)
    in_span = random.normal(size=(n, size[0])) @ fitted.components
    Y = fitted.mean + in_span + 10.0**size10 * random.normal(size=in_span.shape)
    residual = fitted.project(Y).residual
    centred = Y - fitted.mean
    exact = np.linalg.norm(centred - centred @ fitted.components.T @ fitted.components, axis=1)
    assert (np.abs(np.sqrt(residual) - exact) <= 1e-13 * np.linalg.norm(centred, axis=1)).all()


@given(SIZES, st.integers(0, 100), st.floats(-9, 9), st.floats(-60, 60), st.floats(0, 4), st.integers(0, 2**32 - 1))
def test_single_precision_costs_no_more_than_rounding_and_has_no_limits_of_its_own(
    size: tuple[int, int], n: int, size10: float, scale10: float, offset10: float, seed: int
) -> None:
    random, scale = np.random.default_rng(seed), 10.0**scale10
    unit = model(*size, seed)
    fitted = replace(unit, mean=10.0**offset10 * scale * unit.mean)
    Y = fitted.mean + scale * (
        random.normal(size=(n, size[0])) @ unit.components + 10.0**size10 * random.normal(size=unit.mean.shape)
    )
    with np.errstate(over="ignore", under="ignore"):
        single = Y.astype(np.float32)
    single = single[np.isfinite(single).all(axis=1)]
    single_precision, exact = fitted.project(single), fitted.project(single.astype(np.float64))
    norm = np.linalg.norm(single - fitted.mean, axis=1)
    assert single_precision.coordinates.dtype == single_precision.residual.dtype == np.float64
    assert (np.abs(single_precision.coordinates - exact.coordinates) <= 5e-5 * norm[:, None]).all()
    assert (np.abs(np.sqrt(single_precision.residual) - np.sqrt(exact.residual)) <= 5e-5 * norm).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("row_dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", [5, 64, 2000])
def test_a_row_is_projected_alike_in_every_block_of_32(d: int, row_dtype: type, dtype: type) -> None:
    fitted, rows = model(4, d, 1, dtype), np.random.default_rng(2).normal(size=(32, d))
    rows[::3] = fitted.reconstruct(fitted.project(rows[::3]).coordinates)  # small residuals among large ones
    rows[1::9] *= 1e30  # squares beyond single precision
    rows = rows.astype(row_dtype)
    one = fitted.project(rows)
    many = fitted.project(np.tile(rows, (40, 1)))
    for i in range(0, 1280, 32):
        assert np.array_equal(many.coordinates[i : i + 32], one.coordinates)
        assert np.array_equal(many.residual[i : i + 32], one.residual)
    assert np.array_equal(fitted.project(np.asfortranarray(rows)).residual, one.residual)  # in any order in memory


@given(SIZES, st.sampled_from([np.float64, np.float32]), st.integers(0, 2**32 - 1))
def test_a_standardised_model_projects_vectors_as_a_plain_model_projects_deviations(
    size: tuple[int, int], dtype: type, seed: int
) -> None:
    k, d = size[0], size[1] + 1
    random, plain = np.random.default_rng(seed), replace(model(k, d, seed), mean=np.zeros(d), total_variance=9.0 * d)
    D = 2.0 ** random.integers(-20, 20, d)  # without rounding
    standardised = replace(plain, mean=random.integers(-9, 9, d) / D, scale=D)
    Y = random.integers(-99, 99, (40, d)) / 8.0
    V = Y / D + standardised.mean
    of_V, of_Y = standardised.project(V.astype(dtype)), plain.project(Y.astype(dtype))
    for name in ("coordinates", "residual", "scores"):
        assert np.array_equal(getattr(of_V, name), getattr(of_Y, name)), name
    for values, expected in zip(of_V.contributions(d), of_Y.contributions(d), strict=True):
        assert np.array_equal(values, expected)
    assert of_V.log_likelihood == pytest.approx(of_Y.log_likelihood + np.log(D).sum())
    for basis in get_args(Basis):
        back = standardised.reconstruct(of_V.in_basis(basis), basis)
        assert standardised.centre(back) == pytest.approx(plain.reconstruct(of_Y.in_basis(basis), basis), abs=1e-9)
    gaps = np.isnan(with_gaps(Y, 0.3, seed))
    of_V = standardised.project(np.where(gaps, np.nan, V).astype(dtype))
    of_Y = plain.project(np.where(gaps, np.nan, Y).astype(dtype))
    assert np.array_equal(of_V.vectors[~gaps], V[~gaps])
    assert standardised.centre(of_V.vectors) == pytest.approx(of_Y.vectors, rel=1e-4, abs=1e-4)
    assert of_V.scores.score == pytest.approx(of_Y.scores.score, rel=1e-4, abs=1e-4)
