import numpy as np
import pytest
from sklearn.decomposition import IncrementalPCA
from sklearn.utils import gen_batches

from experiments.baselines.incremental_gram import GramIncrementalPCA, RunningCovariance


def stream(d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((d, 12)))[0] * np.linspace(9, 2, 12)
    drift = np.linspace(0, 3, 700)[:, None]  # so that the batches' means differ
    return rng.standard_normal((700, 12)) @ basis.T + 0.1 * rng.standard_normal((700, d)) + 5 + drift


@pytest.mark.parametrize("d", [20, 300], ids=["by the covariance", "by the Gram matrix of the rows"])
def test_it_is_scikit_learns_incremental_pca(d: int) -> None:
    X, oracle, ours = stream(d), IncrementalPCA(12), GramIncrementalPCA(d, 12)
    for rows in gen_batches(len(X), 64, min_batch_size=12):
        oracle.partial_fit(X[rows])
        ours.partial_fit(X[rows])
    assert np.allclose(np.linalg.norm(ours.factor, axis=1), oracle.singular_values_, rtol=1e-8)
    assert np.allclose(ours.mean, oracle.mean_)
    cosines = np.abs(np.sum(ours.components(12) * oracle.components_, axis=1))
    assert np.allclose(cosines, 1, atol=1e-10)


def test_float32_stays_float32() -> None:
    X, ours, covariance = stream(300).astype("f4"), GramIncrementalPCA(300, 5, "f4"), RunningCovariance(300, "f4")
    ours.partial_fit(X)
    covariance.partial_fit(X)
    assert ours.factor.dtype == covariance.covariance.dtype == np.float32


def test_the_running_covariance_is_that_of_all_rows() -> None:
    X, running = stream(20), RunningCovariance(20)
    for rows in gen_batches(len(X), 64):
        running.partial_fit(X[rows])
    assert np.allclose(running.covariance, np.cov(X.T, bias=True))
    assert np.allclose(running.mean, X.mean(axis=0))
