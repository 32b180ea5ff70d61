"""The scikit-learn estimator: scikit-learn's rules, agreement with PCA, batches of any size."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings, strategies as st
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from threadpoolctl import threadpool_info, threadpool_limits

import streampca
from streampca import StreamingPCA, merge
from streampca.estimator import checks
from streampca.estimator.threads import one_thread
from tests.command_line import succeeded
from tests.errors import refusal
from tests.pca.streams import close, covariance, excess, gaussian, remaining_weights

X = gaussian(0, 3000, 1 / np.arange(1, 13.0), offset=2.0)
UNITS = np.logspace(-3, 3, 12)


@pytest.mark.parametrize(
    "estimator",
    [
        StreamingPCA(),
        StreamingPCA(1, half_life=5.0, dtype="float32"),
        StreamingPCA(missing="impute"),
        StreamingPCA(1, oversampling=0, center=False),
        StreamingPCA(whiten=True),
        StreamingPCA(0.9, batch_size=7),
        StreamingPCA(standardize=True, missing="impute"),
        StreamingPCA(missing_values=[-9999, np.inf]),
    ],
)
def test_scikit_learns_estimator_checks(estimator: StreamingPCA) -> None:
    check_estimator(estimator, on_skip=None)


def test_rows_with_gaps_are_learned_and_projected() -> None:
    Y = gaussian(0, 3000, np.array([5.0, 4.0, *[0.3] * 18]), offset=2.0)
    holes = np.where(np.random.default_rng(1).random(Y.shape) < 0.3, np.nan, Y)
    pca = StreamingPCA(2, missing="impute").fit(holes)
    assert excess(pca.components_, covariance(Y)) < 0.01
    assert np.abs(pca.transform(holes) - pca.transform(Y)).mean() < 0.3
    assert np.abs(pca.inverse_transform(pca.transform(holes)) - Y).mean() < 0.5
    assert pca.p_values(holes).mean() == pytest.approx(0.5, abs=0.1)
    assert np.isfinite(pca.score_samples(holes)).all()
    parts = merge([StreamingPCA(2, missing="impute").fit(part) for part in (holes[:1400], holes[1400:])])
    assert excess(parts.partial_fit(holes).components_, covariance(Y)) < 0.01
    batches = StreamingPCA(2, missing="impute")
    for batch in np.array_split(holes, 7):
        batches.partial_fit(batch)
    assert batches.components_.tobytes() == pca.components_.tobytes()
    assert "row 1: 0 of 20 entries are there, at least 6 are needed" in refusal(
        ValueError, pca.partial_fit, [[1.0] * 20, [np.nan] * 20]
    )
    assert "scale the data" in refusal(ValueError, pca.partial_fit, [[1e160] * 8 + [np.nan] * 12])
    assert "row 0: 5 of 20 entries are there, at least 6 are needed" in refusal(
        ValueError, StreamingPCA(2, missing="impute").fit, [[1.0] * 5 + [np.nan] * 15] * 9
    )
    complete = StreamingPCA(2).fit(Y)
    for refusing in (StreamingPCA(2).fit, complete.partial_fit, complete.transform, complete.score_samples):
        assert 'NaN: StreamingPCA fills it with missing="impute"' in refusal(ValueError, refusing, holes)


@pytest.mark.parametrize(
    ("code", "missing_values"),
    [(-9999.0, -9999), (-9999.0, [-200, -9999]), (np.inf, np.array([np.inf])), (float(np.float32(0.1)), "0.1")],
)
def test_missing_values_are_learned_and_projected_as_nan_is(code: float, missing_values: Any) -> None:
    is_gap = np.random.default_rng(1).random(X.shape) < 0.1
    holes = np.where(is_gap, np.nan, X)
    codes = np.where(is_gap, code, X)
    nan = StreamingPCA(2, missing="impute", dtype="float32").fit(holes)
    coded = StreamingPCA(2, missing="impute", missing_values=missing_values, dtype="float32")
    coded.partial_fit(codes[:100]).partial_fit(codes[100:])
    assert coded.components_.tobytes() == nan.components_.tobytes()
    assert coded.transform(codes).tobytes() == nan.transform(holes).tobytes()
    assert coded.p_values(codes).tobytes() == nan.p_values(holes).tobytes()
    other_sign = np.where(is_gap, -code, X)
    if np.isinf(code):
        assert "infinity" in refusal(ValueError, coded.partial_fit, other_sign)
        assert "infinity" in refusal(ValueError, coded.transform, other_sign)
    refusing = StreamingPCA(2, missing_values=missing_values, dtype="float32")
    words = f'Input X contains {code}, one of missing_values: StreamingPCA fills it with missing="impute"'
    assert refusal(ValueError, refusing.fit, codes) == words
    assert refusal(ValueError, refusing.fit(X).transform, codes) == words


def test_missing_values_must_be_numbers() -> None:
    assert "'x' is not a number" in refusal(ValueError, StreamingPCA(2, missing_values="x").fit, X)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_batches_of_any_size_give_the_same_bits(sizes: list[int]) -> None:
    estimator = StreamingPCA(3, oversampling=2)
    whole = estimator.fit(X[: sum(sizes)])
    expected = (whole.components_, whole.explained_variance_, whole.mean_, whole.noise_variance_)
    pieces = StreamingPCA(3, oversampling=2, batch_size=sizes[0])
    for piece in np.split(X[: sum(sizes)], np.cumsum(sizes)[:-1]):
        pieces.partial_fit(piece)
        assert len(pieces.components_) == 3  # reading the model in between changes nothing
    for a, b in zip(
        expected, (pieces.components_, pieces.explained_variance_, pieces.mean_, pieces.noise_variance_), strict=True
    ):
        assert np.array_equal(a, b)
    assert pieces.n_samples_seen_ == sum(sizes)


def test_the_half_life_is_in_messages() -> None:
    estimator = StreamingPCA(half_life=300).fit(X)
    kept = remaining_weights(np.full(len(X), 2 ** (-1 / 300)))
    model = estimator.model_
    assert model.weight == pytest.approx(kept.sum())
    assert close((model.components.T * model.explained_variance) @ model.components, covariance(X, kept), 1e-9)


@pytest.mark.parametrize("standardize", [False, True])
def test_merged_estimators_have_learned_all_parts(standardize: bool) -> None:
    unfitted = StreamingPCA(4, standardize=standardize)
    whole, a, b = (clone(unfitted).fit(X[rows]) for rows in (slice(None), slice(1111), slice(1111, 2500)))
    merged = merge([a, b]).partial_fit(X[2500:])
    assert merged.n_samples_seen_ == len(X)
    assert merged.explained_variance_ == pytest.approx(whole.explained_variance_, rel=1e-9)
    assert merged.components_ == pytest.approx(whole.components_, abs=1e-7)
    weights = [pca.online_.past_scores.histograms.weight for pca in (merge([a, b]), a, b)]
    assert weights[0] == pytest.approx(sum(weights[1:]))
    assert weights[0] > 1000
    assert merged.p_values(X[:5]).shape == (5,)
    assert a.n_samples_seen_ == 1111  # the parts are unchanged


def test_merged_estimators_have_the_names_of_their_features() -> None:
    names, unfitted = [f"sensor {i}" for i in range(X.shape[1])], StreamingPCA(4)
    named, other = (clone(unfitted).fit(pd.DataFrame(X, columns=columns)) for columns in (names, names[::-1]))
    unnamed = clone(unfitted).fit(X)
    for parts in ([named, named], [unnamed, named]):
        assert merge(parts).feature_names_in_.tolist() == names
    assert not hasattr(merge([unnamed, unnamed]), "feature_names_in_")
    assert "same feature names" in refusal(ValueError, merge, [named, unnamed, other])


def test_incompatible_estimators_are_not_merged() -> None:
    one = StreamingPCA(4).fit(X)
    for other in (
        StreamingPCA(3).fit(X),
        StreamingPCA(4).fit(X[:, :6]),
        StreamingPCA(4, half_life=9).fit(X),
    ):
        assert "same parameters" in refusal(ValueError, merge, [one, other])
    assert "nothing" in refusal(ValueError, merge, [])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_components": 0}, "n_components=0 must be between 1 and the number of features, 12"),
        ({"n_components": 13}, "n_components=13"),
        ({"n_components": "most"}, "n_components='most' must be a number of components, a share .* or \"mle\"$"),
        ({"n_components": 1.5}, "n_components=1.5 must be a number of components, a share"),
        ({"oversampling": -1}, "negative"),
        ({"half_life": 0}, "half_life=0"),
        ({"half_life": -1, "missing": "drop"}, "half_life=-1 .*; missing='drop'"),
        ({"dtype": "int32"}, "dtype='int32'"),
        ({"missing": "drop"}, "missing='drop'"),
        ({"standardize": True, "center": False}, "center must be true"),
    ],
)
def test_errors_name_the_wrong_parameter(parameters: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StreamingPCA(**parameters).fit(X)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "scale"), [("float64", 1e153), ("float64", 1e-165), ("float32", 1e30), ("float32", 1e-25)]
)
def test_scales_that_cannot_be_learned_are_refused(dtype: str, scale: float) -> None:
    estimator = StreamingPCA(2, dtype=dtype)  # type: ignore[arg-type]
    assert "scale the data" in refusal(ValueError, estimator.fit, X * scale)


def test_refused_data_are_not_learned_and_tiny_ones_are() -> None:
    late = X.copy()
    late[2500, 3] = np.nan  # in a later slab
    fitted = StreamingPCA(2, batch_size=170).fit(X)
    components = fitted.components_
    for bad in (X * 1e153, np.full((3, 12), np.nan), X[:, :5], late):
        with pytest.raises(ValueError, match=r"scale the data|NaN|features"):
            fitted.partial_fit(bad)
    assert fitted.n_samples_seen_ == len(X)
    assert np.array_equal(fitted.components_, components)
    fitted.partial_fit(X * 1e-170)  # after ordinary ones, tiny ones are nothing odd
    assert fitted.n_samples_seen_ == 2 * len(X)
    assert fitted.explained_variance_[0] > 0.1


# Arrays on disk.


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_an_array_on_disk_is_learned_in_slabs(dtype: type, tmp_path: Path) -> None:
    data = (50 * X).clip(0, 255).astype(dtype)
    np.save(tmp_path / "x.npy", data)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert [len(slab) for slab in checks.split_into_slabs(mapped, 170)] == [170] * 17 + [110]
    ours = StreamingPCA(3, batch_size=170).fit(mapped)
    coordinates = ours.transform(mapped)
    whole = StreamingPCA(3).fit(data)
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_", "n_samples_seen_"):
        assert np.array_equal(getattr(ours, name), getattr(whole, name))
    assert coordinates == pytest.approx(whole.transform(data), abs=1e-9)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(16_000, 200))  # 26 MB as float64
    mapped[:] = np.random.default_rng(0).integers(0, 256, 200, np.uint8)
    mapped[::3, :7] = 9
    pca = StreamingPCA(2, batch_size=655)  # 1 MiB as float64
    pca.fit(mapped[:300])  # loads and compiles everything first
    tracemalloc.start()
    pca.fit(mapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_share_of_the_variance_chooses_as_many_components_as_pca(share: float) -> None:
    ours, theirs = StreamingPCA(share).fit(X), PCA(share).fit(X)
    assert ours.n_components_ == theirs.n_components_
    assert np.abs(np.abs((ours.components_ * theirs.components_).sum(axis=1)) - 1).max() <= 1e-9
    assert ours.transform(X).shape == (len(X), theirs.n_components_)
    parts = [StreamingPCA(share).fit(part) for part in np.array_split(X, 3)]
    assert merge(parts).n_components_ == theirs.n_components_
    V = gaussian(7, 9000, 1 / np.arange(1, 13.0), offset=2.0)
    p = StreamingPCA(share).fit(V[:8000]).p_values(V[8000:])
    assert np.mean(p <= 0.1) == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_mle_chooses_as_many_components_as_pca(rank: int) -> None:
    Y = gaussian(3, 2000, np.r_[np.linspace(9, 4, rank), np.ones(12 - rank)], offset=2.0)
    ours, theirs = StreamingPCA("mle").fit(Y), PCA("mle").fit(Y)
    assert ours.n_components_ == theirs.n_components_ >= rank
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_)
    assert merge([StreamingPCA("mle").fit(part) for part in np.array_split(Y, 3)]).n_components_ == ours.n_components_
    assert StreamingPCA("mle").fit(Y[:, :1]).n_components_ == 1


@pytest.mark.parametrize("d", [80, 800])
def test_variances_of_features_and_the_precision_are_those_of_scikit_learn(d: int) -> None:
    Y = gaussian(0, 3000, 1 / np.arange(1, d + 1.0), offset=2.0)
    ours = StreamingPCA(4).fit(Y)
    theirs = PCA(4).fit(Y)
    if d <= 768:  # where the covariance is kept
        assert ours.var_ == pytest.approx(Y.var(axis=0), rel=1e-9)
    assert ours.var_.sum() == pytest.approx(Y.var(axis=0).sum(), rel=1e-9)
    assert ours.get_precision() == pytest.approx(theirs.get_precision(), rel=0.05, abs=0.05)
    assert ours.get_precision() @ ours.get_covariance() == pytest.approx(np.eye(d), abs=1e-9)


@pytest.mark.slow
def test_import_is_lazy() -> None:
    script = (
        "import sys, streampca; assert not {'numpy', 'sklearn', 'numba'} & set(sys.modules);"
        "streampca.Model; assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streampca.estimator.estimator")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=r"\.\[sklearn\]"):
        _ = streampca.StreamingPCA
    assert streampca.Model.__name__ == "Model"


def test_public_names_are_listed() -> None:
    assert set(streampca.__all__) <= set(dir(streampca))
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = streampca.nothing_such


@pytest.mark.parametrize("n_components", [1, 3, 6, 12, None])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_attributes_have_the_same_meaning_as_those_of_pca(n_components: int | None, scale: float) -> None:
    """With as many columns as features one pass is exact: all common attributes agree, for every k."""
    ours, theirs = StreamingPCA(n_components, oversampling=12).fit(scale * X), PCA(n_components).fit(scale * X)
    for name in (
        "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "n_components_",
        "n_features_in_", "n_samples_",
    ):  # fmt: skip
        assert np.asarray(getattr(ours, name)) == pytest.approx(np.asarray(getattr(theirs, name)), rel=1e-8), name
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-7, abs=0)
    assert np.abs(np.abs((ours.components_ * theirs.components_).sum(axis=1)) - 1).max() <= 1e-9
    public = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("_")}
    assert public <= set(dir(ours))


def test_score_samples_are_the_log_likelihood_as_of_scikit_learns_pca() -> None:
    ours, theirs = StreamingPCA(5).fit(X), PCA(5).fit(X)
    expected = multivariate_normal(theirs.mean_, theirs.get_covariance()).logpdf(X[:50])
    assert ours.score_samples(X[:50]) == pytest.approx(expected, rel=1e-7)
    assert ours.score(X[:50]) == pytest.approx(expected.mean(), rel=1e-7)
    assert ours.score_samples(X) == pytest.approx(theirs.score_samples(X), rel=1e-7)


@pytest.mark.parametrize("n_components", [None, "mle", "d", "d - 1"])
@pytest.mark.parametrize("d", [2, 3, 20, 64])
def test_messages_three_times_as_large_are_unusual_with_every_number_of_components(
    d: int, n_components: str | None
) -> None:
    V = gaussian(4, 3200, np.linspace(2, 1, d))
    pca = StreamingPCA({"d": d, "d - 1": d - 1}.get(n_components or "", n_components))
    for part in np.array_split(V[:2400], 6):
        pca.partial_fit(part)
    assert np.median(pca.p_values(3 * V[2400:])) < 0.01


@pytest.mark.parametrize("options", [{}, {"half_life": 500.0}])
def test_p_values_compare_with_learned_rows(options: dict[str, Any]) -> None:
    V = gaussian(7, 9000, 1 / np.arange(1, 13.0), offset=2.0)
    whole, batches = StreamingPCA(3, **options).fit(V[:8000]), StreamingPCA(3, **options)
    for batch in np.array_split(V[:8000], 7):
        batches.partial_fit(batch)
    ordinary, odd = V[8000:], V[8000:] + np.array([0] * 11 + [9])
    assert np.array_equal(whole.p_values(ordinary), batches.p_values(ordinary))
    assert np.mean(whole.p_values(ordinary) <= 0.1) == pytest.approx(0.1, abs=0.06)
    assert whole.p_values(odd).max() < 0.01
    assert StreamingPCA(3, **options).fit(V[:300]).p_values(odd[:2]).tolist() == [1, 1]


@pytest.mark.parametrize("whiten", [False, True])
def test_components_coordinates_and_the_covariance_are_those_of_pca(whiten: bool) -> None:
    ours, theirs = StreamingPCA(5, whiten=whiten).fit(X), PCA(5, whiten=whiten).fit(X)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    assert np.abs(ours.components_ * signs[:, None] - theirs.components_).max() <= 1e-8
    assert list(ours.get_feature_names_out()) == [f"streamingpca{i}" for i in range(5)]
    assert ours.model_.components is ours.components_
    assert ours.transform(X) * signs == pytest.approx(theirs.transform(X), abs=1e-7)
    back = theirs.inverse_transform(theirs.transform(X))
    assert ours.inverse_transform(ours.transform(X)) == pytest.approx(back, abs=1e-7)
    expected = PCA(5).fit(X).get_covariance()  # with whiten, scikit-learn scales it twice
    assert ours.get_covariance() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("whiten", [False, True])
def test_standardised_it_is_the_pipeline_of_scaler_and_pca(whiten: bool) -> None:
    Y = X * UNITS
    Y[:, 3] = 7.1  # constant
    ours = StreamingPCA(5, standardize=True, whiten=whiten).fit(Y)
    pipeline = make_pipeline(StandardScaler(), PCA(5, whiten=whiten)).fit(Y)
    scaler, theirs = pipeline
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    assert ours.components_ * signs[:, None] == pytest.approx(theirs.components_, abs=1e-9)
    assert ours.explained_variance_ == pytest.approx(theirs.explained_variance_)
    assert ours.explained_variance_ratio_ == pytest.approx(theirs.explained_variance_ratio_)
    assert ours.mean_ == pytest.approx(scaler.mean_)
    assert ours.scale_ == pytest.approx(scaler.scale_)
    assert ours.var_ == pytest.approx(Y.var(axis=0), rel=1e-9, abs=1e-20)
    coordinates = ours.transform(Y)
    assert coordinates * signs == pytest.approx(pipeline.transform(Y), abs=1e-9)
    back = pipeline.inverse_transform(pipeline.transform(Y))
    assert ours.inverse_transform(coordinates) / scaler.scale_ == pytest.approx(back / scaler.scale_, abs=1e-9)


def test_standardised_the_covariance_and_the_density_are_those_of_the_data() -> None:
    Y = X * UNITS
    ours, theirs = StreamingPCA(5, standardize=True).fit(Y), PCA(5).fit(Y / Y.std(axis=0))
    units = np.outer(Y.std(axis=0), Y.std(axis=0))
    covariance = ours.get_covariance()
    assert covariance == pytest.approx(theirs.get_covariance() * units)
    assert ours.get_precision() == pytest.approx(theirs.get_precision() / units)
    deviations = Y[:50] - Y.mean(axis=0)
    distances = np.vecdot(deviations, np.linalg.solve(covariance, deviations.T).T)
    density = -(distances + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
    assert ours.score_samples(Y[:50]) == pytest.approx(density, rel=1e-7)


def test_rows_whose_influence_is_bounded_are_counted() -> None:
    odd = X.copy()
    odd[1500] *= 1e6
    assert [StreamingPCA(2).fit(rows).n_clipped_ for rows in (X, odd)] == [0, 1]


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_sparse_rows_are_learned_as_dense_ones_are(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_SLAB_BYTES", 700 * 8 * 12)
    Y = np.where(np.random.default_rng(0).random(X.shape) < 0.2, X, 0.0)
    sparse = scipy.sparse.coo_array(Y).asformat(form)
    ours, dense = StreamingPCA(3).fit(sparse), StreamingPCA(3).fit(Y)
    assert ours.components_.tobytes() == dense.components_.tobytes()
    assert np.array_equal(ours.transform(sparse), dense.transform(Y))


def test_single_precision_goes_in_and_comes_out() -> None:
    pca = StreamingPCA(3).fit(X)
    single = pca.transform(X.astype(np.float32))
    assert (single.dtype, pca.inverse_transform(single).dtype) == (np.float32, np.float32)
    assert single == pytest.approx(pca.transform(X), abs=1e-4)
    # The first array decides in which precision it learns.
    pca = StreamingPCA(2).fit(X.astype(np.float32))
    assert pca.online_.config.learning.dtype == pca.components_.dtype == np.float32
    assert pca.partial_fit(X).online_.config.learning.dtype == pca.components_.dtype == np.float32
    for rows, dtype in ((X, None), ((50 * X).astype(np.int64), None), (X.astype(np.float32), "float64")):
        pca = StreamingPCA(2, dtype=dtype).fit(rows)  # type: ignore[arg-type]
        assert pca.online_.config.learning.dtype == pca.components_.dtype == np.float64


# Attributes and parameters that scikit-learn's own PCA and IncrementalPCA have.


def test_forgetting_divides_variances_by_the_weight_less_one() -> None:
    ours = StreamingPCA(3, half_life=20, whiten=True).fit(X)
    model, weight = ours.model_, ours.model_.weight
    assert ours.explained_variance_ == pytest.approx(model.explained_variance * weight / (weight - 1), rel=1e-12)
    assert ours.noise_variance_ == pytest.approx(model.noise_variance * weight / (weight - 1), rel=1e-12)
    whitened = model.project(X).in_basis("whitened")
    assert ours.transform(X) == pytest.approx(whitened * np.sqrt((weight - 1) / weight), rel=1e-9)


@pytest.mark.parametrize("whiten", [False, True])
def test_one_row_has_no_variance(whiten: bool) -> None:
    ours = StreamingPCA(whiten=whiten).fit(X[:1])
    assert (ours.n_components_, ours.explained_variance_.tolist(), ours.noise_variance_) == (1, [0.0], 0.0)
    assert ours.inverse_transform(ours.transform(X[:1])) == pytest.approx(X[:1])
    assert "n_components" in refusal(ValueError, StreamingPCA(13).fit, X[:1])


@pytest.mark.parametrize(
    "changed",
    [
        {"n_components": 3},
        {"half_life": 9.0},
        {"missing": "impute"},
        {"missing_values": [-9999, -200]},
        {"center": False, "dtype": "float32"},
    ],
)
def test_parameters_that_shape_the_model_cannot_change_after_data(changed: dict[str, Any]) -> None:
    pca = StreamingPCA(2).fit(X)
    before, model = pca.get_params(), pca.model_
    with pytest.raises(ValueError, match=f"^{', '.join(changed)} changed .*call fit to start again"):
        pca.set_params(**changed).partial_fit(X)
    assert pca.model_ is model
    assert pca.set_params(**before).partial_fit(X).n_samples_seen_ == 2 * len(X)
    assert pca.set_params(**changed).fit(X).n_samples_seen_ == len(X)
    pca.set_params(whiten=True, batch_size=7, copy=False).partial_fit(X)  # these change no model


def test_the_package_has_a_version() -> None:
    assert streampca.__version__ == streampca.version.__version__


# One thread of BLAS.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "parameters"),
    [((), {}), (["--standardize"], {"standardize": True}), (["--float32"], {"dtype": "float32"})],
)
def test_the_bits_of_the_model_are_those_of_streampca_fit(
    options: list[str], parameters: dict[str, object], tmp_path: Path
) -> None:
    """Without a limit from outside: large enough products for many threads, in a process of its own."""
    file, output = tmp_path / "x.npy", tmp_path / "m.npz"
    np.save(file, gaussian(0, 3000, np.full(300, 1.0), offset=2.0))
    succeeded(sys.executable, "-m", "streampca", "fit", file, "-o", output, "--components", 20, *options)
    script = f"""
import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits
from streampca import StreamingPCA
from streampca.fold.model_file import decode
threadpool_limits(4)
pca = StreamingPCA(20, **{parameters})
for batch in np.array_split(np.load({str(file)!r}), 7):
    pca.partial_fit(batch)
fitted = decode(open({str(output)!r}, "rb").read()).model
for name, values in vars(fitted).items():
    assert np.array_equal(values, getattr(pca.model_, name)), name
assert np.array_equal(pca.transform(batch), fitted.project(batch).coordinates)
assert all(library["num_threads"] == 4 for library in threadpool_info() if library["user_api"] == "blas")
"""
    succeeded(sys.executable, "-c", script)


def test_the_limit_lasts_until_the_last_thread_has_left() -> None:
    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(3):
        one_thread.__enter__()
        one_thread.__enter__()  # as another thread would meanwhile
        one_thread.__exit__()
        assert threads() == {1}
        one_thread.__exit__()
        assert threads() == {3}
