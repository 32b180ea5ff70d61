"""Arrays larger than memory: slabs of NumPy arrays, and Dask arrays chunk by chunk."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from streampca import ImplicitKrasulina, merge
from streampca.estimator import dask_arrays
from tests.pca.streams import covariance, excess, gaussian

X = gaussian(0, 3000, 1 / np.arange(1, 13.0), offset=2.0)


@pytest.fixture(autouse=True)
def synchronous_dask():  # type: ignore[no-untyped-def]
    with dask.config.set(scheduler="synchronous"):
        yield


def same(a: ImplicitKrasulina, b: ImplicitKrasulina) -> bool:
    names = ("components_", "explained_variance_", "mean_", "noise_variance_", "n_samples_seen_", "n_features_in_")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


# Arrays on disk.


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_an_array_on_disk_is_learned_in_slabs(dtype: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_arrays, "_SLAB", 8 * 12 * 170)
    data = (50 * X).clip(0, 255).astype(dtype)
    np.save(tmp_path / "x.npy", data)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert [len(piece) for piece in dask_arrays.in_order(mapped)] == [170] * 17 + [110]
    ours = ImplicitKrasulina(3).fit(mapped)
    coordinates = ours.transform(mapped)
    monkeypatch.undo()
    whole = ImplicitKrasulina(3).fit(data)
    assert same(ours, whole)
    assert coordinates == pytest.approx(whole.transform(data), abs=1e-9)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_arrays, "_SLAB", 2**20)
    mapped = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(16_000, 200))  # 26 MB as float64
    mapped[:] = np.random.default_rng(0).integers(0, 256, 200, np.uint8)
    mapped[::3, :7] = 9
    ImplicitKrasulina(2).fit(mapped[:300])  # loads and compiles everything first
    tracemalloc.start()
    ImplicitKrasulina(2).fit(mapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_an_array_with_an_invalid_later_slab_is_not_learned_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_arrays, "_SLAB", 8 * 12 * 170)
    bad = X.copy()
    bad[2500, 3] = np.nan
    fitted = ImplicitKrasulina(2).fit(X)
    components = fitted.components_
    for array in (bad, da.from_array(bad, chunks=(500, -1))):
        with pytest.raises(ValueError, match="NaN"):
            fitted.partial_fit(array)
        assert fitted.n_samples_seen_ == len(X)
        assert np.array_equal(fitted.components_, components)
        with pytest.raises(ValueError, match="NaN"):
            ImplicitKrasulina(2).fit(array)


# Dask arrays.

cuts = st.lists(st.integers(1, 500), min_size=1, max_size=6)


@given(cuts, st.integers(1, 12), st.booleans())
@settings(max_examples=25, deadline=None)
def test_each_chunk_of_rows_is_learned_separately_and_merged(rows: list[int], columns: int, center: bool) -> None:
    data = X[: sum(rows)]
    estimator = ImplicitKrasulina(3, oversampling=2, center=center)
    merged_by_hand = merge(
        [ImplicitKrasulina(3, oversampling=2, center=center).fit(part) for part in np.split(data, np.cumsum(rows)[:-1])]
    )
    ours = estimator.fit(da.from_array(data, chunks=(tuple(rows), columns)))
    assert ours.n_samples_seen_ == len(data)
    assert ours.explained_variance_ == pytest.approx(merged_by_hand.explained_variance_, rel=1e-10, abs=1e-12)
    plane, same_plane = (e.components_.T @ e.components_ for e in (ours, merged_by_hand))
    distinct = min(len(data) - center, 12) >= 3  # otherwise the remaining axes are arbitrary
    assert not distinct or plane == pytest.approx(same_plane, abs=1e-7)


def test_threads_give_the_same_bits() -> None:
    array = da.from_array(X, chunks=(450, 5))
    one = ImplicitKrasulina(3).fit(array)
    with dask.config.set(scheduler="threads", num_workers=2):
        assert same(ImplicitKrasulina(3).fit(array), one)


def test_merged_chunks_come_close_to_pca_and_can_continue_learning() -> None:
    ours = ImplicitKrasulina(3, oversampling=4).fit(da.from_array(X[:2000], chunks=(300, -1))).partial_fit(X[2000:])
    assert ours.n_samples_seen_ == len(X)
    assert excess(ours.components_, covariance(X)) <= 1e-3


@pytest.mark.parametrize("parameters", [{}, {"half_life": 200}, {"gauge": "free", "random_state": 3}])
def test_partial_fit_learns_chunk_by_chunk(parameters: dict[str, object]) -> None:
    """The same bits as for the array in memory, in every gauge."""
    array = da.from_array(X, chunks=(450, 5))
    ours = ImplicitKrasulina(3, **parameters).partial_fit(array)  # type: ignore[arg-type]
    assert same(ours, ImplicitKrasulina(3, **parameters).fit(X))  # type: ignore[arg-type]


def test_coordinates_are_computed_lazily() -> None:
    fitted = ImplicitKrasulina(3).fit(X)
    array = da.from_array(X, chunks=(450, 5))
    expected = fitted.transform(X)
    lazy = fitted.transform(array)
    back = fitted.inverse_transform(lazy)
    assert isinstance(lazy, da.Array)
    assert (lazy.shape, lazy.dtype, back.shape) == ((3000, 3), np.float64, (3000, 12))
    fitted.partial_fit(10 * X)  # does not affect lazy results requested before
    assert lazy.compute() == pytest.approx(expected, abs=1e-10)
    reference = ImplicitKrasulina(3).fit(X)
    assert back.compute() == pytest.approx(reference.inverse_transform(expected), abs=1e-10)
    with pytest.raises(ValueError, match="features"):
        fitted.transform(array[:, :5]).compute()


def test_empty_chunks_and_chunks_of_unknown_length() -> None:
    array = da.from_array(X, chunks=(500, -1))
    filtered = array[array[:, 0] > X[:1000, 0].max()]  # chunk lengths are unknown to Dask, some are 0
    kept = X[X[:, 0] > X[:1000, 0].max()]
    ours = ImplicitKrasulina(1).fit(filtered)
    assert ours.n_samples_seen_ == len(kept) > 0
    assert ours.mean_ == pytest.approx(kept.mean(axis=0))
    assert ours.transform(filtered).compute() == pytest.approx(ours.transform(kept))
    assert ImplicitKrasulina(1).partial_fit(filtered).n_samples_seen_ == len(kept)
    empty = array[array[:, 0] > 1e9]
    for learn in (ImplicitKrasulina(1).fit, ImplicitKrasulina(1).partial_fit):
        with pytest.raises(ValueError, match="no rows"):
            learn(empty)


@pytest.mark.parametrize("parameters", [{"half_life": 9.0}, {"gauge": "free"}])
def test_parameters_that_prevent_merging_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="partial_fit"):
        ImplicitKrasulina(2, **parameters).fit(da.from_array(X, chunks=(500, -1)))  # type: ignore[arg-type]


def test_in_a_pipeline() -> None:
    array = da.from_array(X, chunks=(500, -1))
    pipeline = make_pipeline(ImplicitKrasulina(2))
    assert isinstance(pipeline.fit_transform(array), da.Array)
    both = make_pipeline(MaxAbsScaler(), ImplicitKrasulina(2)).fit(X)
    assert both.transform(X).shape == (3000, 2)


@pytest.mark.slow
def test_dask_is_not_imported_for_numpy_arrays() -> None:
    script = (
        "import sys; import numpy as np; from streampca import ImplicitKrasulina;"
        "ImplicitKrasulina(1).fit_transform(np.eye(3)); assert 'dask' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
