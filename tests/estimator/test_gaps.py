"""What is served of streams and merges with gaps of every kind: scores of ordinary rows, variances, and likelihoods."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from streampca import StreamingPCA, merge
from streampca.pca.arrays import F64

SENSORS, COMPONENTS = 24, 3
FIRST, LAST = slice(0, 6), slice(18, 24)


def stream(seed: int, rows: int, noise: float = 1.0) -> F64:
    """Rows with three strong factors and unequal noise."""
    random = np.random.default_rng([seed, rows])
    loadings = random.standard_normal((SENSORS, COMPONENTS)) * [3, 2, 1]
    deviations = noise * np.exp(random.uniform(-0.7, 0.7, SENSORS))
    factors = random.standard_normal((rows, COMPONENTS))
    return (
        factors @ loadings.T
        + random.standard_normal((rows, SENSORS)) * deviations
        + 5 * random.standard_normal(SENSORS)
    )


def fitted(rows: F64, k: int | None = COMPONENTS, **parameters: object) -> StreamingPCA:
    return StreamingPCA(k, missing="impute", **parameters).fit(rows)


def without(rows: F64, *spans: tuple[slice, slice]) -> F64:
    rows = rows.copy()
    for which, sensors in spans:
        rows[which, sensors] = np.nan
    return rows


def at_random(rows: F64) -> F64:
    """Without 30 % of the entries; rows that keep fewer than 16 are left out, as too few to be learned."""
    rows = np.where(np.random.default_rng(0).random(rows.shape) < 0.3, np.nan, rows)
    return rows[(~np.isnan(rows)).sum(axis=1) >= 16]


def in_turn(rows: F64) -> F64:
    return without(rows, (slice(0, None, 2), FIRST), (slice(1, None, 2), LAST))


def parts(rows: F64) -> list[F64]:
    """Four partitions, each of which never shows another quarter."""
    quarters = np.split(rows, 4)
    return [without(part, (slice(None), slice(6 * i, 6 * i + 6))) for i, part in enumerate(quarters)]


ALL, HALF = slice(None), slice(None, 4000)
STREAMS: dict[str, Callable[[F64], list[F64]]] = {
    "complete": lambda rows: [rows],
    "at random": lambda rows: [at_random(rows)],
    "late": lambda rows: [without(rows, (slice(None, 2000), FIRST))],
    "dying": lambda rows: [without(rows, (slice(4000, None), FIRST))],
    "never": lambda rows: [without(rows, (ALL, FIRST))],
    "in turn": lambda rows: [in_turn(rows)],
    "a quarter never in each": parts,
    "a partition without a sensor": lambda rows: [rows[:4000], without(rows[4000:], (ALL, FIRST))],
    "late in each": lambda rows: [without(part, (slice(None, 1000), FIRST)) for part in np.split(rows, 2)],
    "partly shared": lambda rows: [
        without(rows[:4000], (ALL, slice(16, 24))),
        without(rows[4000:], (ALL, slice(0, 8))),
    ],
    "once": lambda rows: [rows[:4000], without(rows[4000:], (slice(6), FIRST), (slice(7, None), FIRST))],
}


def learned(kind: str, rows: F64, **parameters: object) -> StreamingPCA:
    fits = [fitted(part, **parameters) for part in STREAMS[kind](rows)]
    return merge(fits) if len(fits) > 1 else fits[0]


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in STREAMS if kind != "once"])
def test_p_values_of_ordinary_rows_are_uniform_whoever_has_seen_what(kind: str, standardize: bool) -> None:
    rows = stream(1, 12_000)
    pca, new = learned(kind, rows[:8000], standardize=standardize), rows[8000:]
    if kind in ("at random", "in turn"):
        new = (at_random if kind == "at random" else in_turn)(new)
    p = pca.p_values(new)
    assert 0.4 <= np.mean(p <= 0.5) <= 0.6
    assert np.mean(p <= 0.01) <= 0.02
    assert pca.noise_variance_ == pytest.approx(
        learned("complete", rows[:8000], standardize=standardize).noise_variance_, rel=0.25
    )


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("k", [COMPONENTS, 8, None])
@pytest.mark.parametrize("kind", STREAMS)
def test_no_model_explains_more_than_there_is(kind: str, k: int | None, standardize: bool) -> None:
    """No correlation is above 1, and what is left out is more than rounding where there is noise."""
    pca = learned(kind, stream(2, 8000), k=k, standardize=standardize)
    state, model = pca.online_.state, pca.model_
    variances = state.entry_variances
    S = np.zeros((SENSORS, SENSORS))
    S[np.tril_indices(SENSORS)] = np.abs(state.covariance)
    largest = np.sqrt(np.outer(variances, variances))
    assert (largest * (1 + 1e-9) - S >= 0).all()
    assert model.explained_variance_ratio.sum() <= 1 + 1e-12
    assert (np.diff(model.explained_variance) <= 0).all()
    seen = model.seen_dimensions
    assert seen == (18 if kind == "never" else SENSORS)
    assert model.explained_variance[: min(model.n_components, seen)].min() > 1e-6 * model.total_variance
    if model.n_components < seen:
        assert model.noise_variance > 1e-6 * model.total_variance
    assert np.isfinite(pca.score_samples(stream(3, 50))).all()


def test_a_sensor_that_was_never_seen_does_not_exist_for_what_is_served() -> None:
    """A model of the other sensors gives the same scores, likelihoods and p-values, whatever that entry holds."""
    rows, new = stream(4, 4000), stream(5, 200)
    whole, fewer = fitted(without(rows, (ALL, FIRST))), fitted(rows[:, 6:])
    assert whole.noise_variance_ == pytest.approx(fewer.noise_variance_, rel=1e-9)
    for entry in (np.nan, 0.0, 1e6):
        new[:, FIRST] = entry
        of_whole, of_fewer = whole.model_.project(new), fewer.model_.project(new[:, 6:])
        for one, other in zip(of_whole.relative_scores, of_fewer.relative_scores, strict=True):
            assert one == pytest.approx(other, rel=1e-6)
        assert of_whole.log_likelihood == pytest.approx(of_fewer.log_likelihood, rel=1e-6)
        assert whole.p_values(new) == pytest.approx(fewer.p_values(new[:, 6:]), abs=1e-6)
        single = whole.model_.project(new.astype(np.float32))
        assert single.residual == pytest.approx(of_whole.residual, rel=1e-4)
        assert not np.isin(of_whole.contributions(SENSORS)[1].spe[:, -6:], 0, invert=True).any()


MASKED: dict[str, Callable[[F64], object]] = {
    "-9999": lambda rows: np.ma.masked_array(np.nan_to_num(rows, nan=-9999), np.isnan(rows)),
    "nan": np.ma.masked_invalid,
    "rows": lambda rows: [np.ma.masked_invalid(row) for row in rows],
    "objects of pandas": lambda rows: pd.DataFrame(rows).astype(object).mask(np.isnan(rows), pd.NA),
    "objects of NumPy": lambda rows: np.where(np.isnan(rows), pd.NA, rows.astype(object)),
    "lists": lambda rows: [[None if entry != entry else entry for entry in row] for row in rows.tolist()],
    "lists of pandas' null": lambda rows: [[pd.NA if entry != entry else entry for entry in row] for row in rows],
    "Arrow": lambda rows: pa.table({str(i): pa.array(column, from_pandas=True) for i, column in enumerate(rows.T)}),
}


@pytest.mark.parametrize("kind", MASKED)
def test_what_a_mask_or_a_null_hides_is_missing(kind: str) -> None:
    rows = at_random(stream(7, 1000))
    plain, hidden = fitted(rows, batch_size=300), fitted(MASKED[kind](rows), batch_size=300)
    assert np.array_equal(hidden.components_, plain.components_)
    for method in ("transform", "p_values", "score_samples"):
        assert np.array_equal(getattr(hidden, method)(MASKED[kind](rows[:50])), getattr(plain, method)(rows[:50]))
    with pytest.raises(ValueError, match='missing="impute"'):
        StreamingPCA(2).fit(MASKED[kind](rows))


def test_whole_numbers_behind_a_mask_are_missing_and_a_mask_that_hides_nothing_is_ignored() -> None:
    rows = np.round(at_random(stream(7, 1000)))
    counts = np.ma.masked_array(np.nan_to_num(rows, nan=-1).astype(np.int16), np.isnan(rows))
    assert np.array_equal(fitted(counts).mean_, fitted(rows).mean_)
    single = stream(8, 500).astype(np.float32)
    pca = StreamingPCA(2).fit(np.ma.masked_array(single))
    assert np.array_equal(pca.components_, StreamingPCA(2).fit(single).components_)
    assert pca.components_.dtype == np.float32


def test_a_sensor_that_a_partition_saw_once_weighs_next_to_nothing() -> None:
    rows = stream(6, 8000)
    rows[4006, FIRST] += 200  # the only message of the second partition that shows these sensors
    pca = learned("once", rows)
    assert pca.var_[FIRST] == pytest.approx(rows[:4000, FIRST].var(axis=0), rel=0.2)
    assert pca.mean_[FIRST] == pytest.approx(rows[:4000, FIRST].mean(axis=0), abs=0.3)


@pytest.mark.parametrize("k", ["half", "all but one", None, "mle", 0.9])
@pytest.mark.parametrize("d", [24, 120])
def test_p_values_are_uniform_with_any_number_of_components(d: int, k: object) -> None:
    """On a linear spectrum, where no noise is left that has one variance."""
    rows = np.random.default_rng(0).standard_normal((4000, d)) * np.linspace(1, 0.1, d)
    pca = StreamingPCA({"half": d // 2, "all but one": d - 1}.get(k, k)).fit(rows[:3000])
    assert 0.4 <= np.mean(pca.p_values(rows[3000:]) <= 0.5) <= 0.6
