"""IncrementalPCA with spare columns against batch PCA."""

import numpy as np
import pytest

from benchmarks.batch import Batch
from experiments.baselines import incremental_pca
from streampca.pca.arrays import F64
from tests.pca.streams import gaussian


def batches(Y: F64) -> list[F64]:
    return [Y[i : i + 100] for i in range(0, len(Y), 100)]


def test_with_all_columns_it_is_batch_pca() -> None:
    Y = gaussian(0, 600, 1 / np.arange(1, 9.0), offset=1.0)
    components, mean = incremental_pca.components(batches(Y), 3, 8)
    assert components @ components.T == pytest.approx(np.eye(3), abs=1e-12)
    assert Batch.of(lambda: batches(Y)).excess(components, mean) == pytest.approx(0, abs=1e-9)


def test_spare_columns_help_and_short_batches_are_left_out() -> None:
    Y = gaussian(1, 2000, 1 / np.arange(1, 31.0))
    batch = Batch.of(lambda: batches(Y))
    tight, spare = (batch.excess(*incremental_pca.components(batches(Y), 3, columns)) for columns in (3, 12))
    assert 0 <= spare < tight / 2
    expected = incremental_pca.components(batches(Y), 3, 12)[0]
    assert np.array_equal(incremental_pca.components([*batches(Y), Y[:5]], 3, 12)[0], expected)
