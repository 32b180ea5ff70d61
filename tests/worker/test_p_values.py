"""p-values are uniform on ordinary messages, whatever the spectrum, the size, and who publishes when."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from streampca.backfill import BackfillPlan, fold_batches, merge
from streampca.estimator.estimator import StreamingPCA
from streampca.files.columns import FileOptions
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.formats.arrow import column_of
from streampca.pca.arrays import F64, Array
from tests.fold.streams import fold_config, learn
from tests.worker.test_publisher import PublisherFixture

K, TESTED = 8, 2000
LARGEST, ALARMS = 0.08, 0.025  # Kolmogorov–Smirnov distance from uniform; share of p ≤ 0.01
SPECTRA: dict[str, Callable[[F64], F64]] = {
    "flat": np.ones_like,
    "power 0.5": lambda j: j**-0.25,
    "power 1": lambda j: j**-0.5,
    "power 2": lambda j: j**-1.0,
    "low rank": lambda j: np.where(j <= 5, 1 / j, 0.0),
}


class Messages:
    """Gaussian messages with this spectrum of variances, and their gross outliers."""

    def __init__(self, spectrum: str, d: int, seed: int = 1) -> None:
        self._random, self.d = np.random.default_rng(seed), d
        self._deviations = SPECTRA[spectrum](np.arange(1, d + 1.0))

    def __call__(self, n: int) -> Array:
        return self._random.standard_normal((n, self.d)) * self._deviations + 1.0

    def outliers(self) -> Array:
        """Far out within the subspace of the components, and far off it."""
        return 1.0 + 50 * np.linalg.norm(self._deviations) * np.eye(self.d)[[0, -1]]


def distance(p: F64) -> float:
    """The Kolmogorov–Smirnov distance from uniform."""
    p, steps = np.sort(p), np.arange(len(p) + 1) / len(p)
    return float(max(np.max(steps[1:] - p), np.max(p - steps[:-1])))


def check(p_values: Callable[[Array], Sequence[F64]], messages: Messages) -> None:
    """The p-values of T², SPE and score, or of the score alone, are uniform; those of an SPE of rounding are all 1."""
    for p in p_values(messages(TESTED)):
        assert distance(p) <= LARGEST or (p == 1).all()
        assert np.mean(p <= 0.01) <= ALARMS
    assert p_values(messages.outliers())[-1].max() <= 1e-3


def of(published: PublishedModel) -> Callable[[Array], Sequence[F64]]:
    return lambda V: published.project(V).p_values


def of_estimator(pca: StreamingPCA) -> Callable[[Array], Sequence[F64]]:
    return lambda V: [pca.p_values(V)]


every_stream = pytest.mark.parametrize(
    ("d", "spectrum"), [*itertools.product((64, 257), SPECTRA), (768, "power 1"), (768, "low rank"), (784, "flat")]
)


@every_stream
def test_of_the_estimator(d: int, spectrum: str) -> None:
    messages, pca = Messages(spectrum, d), StreamingPCA(K)
    check(of_estimator(pca.fit(messages(2300))), messages)
    check(of_estimator(pca.partial_fit(messages(8000))), messages)


class Partitions(PublisherFixture):
    """Partitions that grow together."""

    def __init__(self, messages: Messages, number: int, config: FoldConfig) -> None:
        super().__init__(config)
        self._messages, self._folds = messages, dict.fromkeys(range(number), Fold.empty(config.learning))

    def grow(self, n: int) -> None:
        for partition, fold in self._folds.items():
            position = max(fold.position, 0) + n
            self._folds[partition], _ = learn(fold, self._messages(n), [-1] * n, position, self.fold_config)
            self.save(partition, self._folds[partition])


def config_of(d: int) -> FoldConfig:
    return fold_config(dimensions=d, components=K, oversampling=None, warm_up=None)


@every_stream
def test_of_the_first_version_and_the_tenth(d: int, spectrum: str) -> None:
    messages = Messages(spectrum, d)
    partitions = Partitions(messages, 5, config_of(d))
    partitions.grow(1190)  # 222 are pending, more than 1,000 of all
    check(of(partitions.publish()), messages)
    for _ in range(9):
        partitions.grow(300)
        tenth = partitions.publish()
    check(of(tenth), messages)


@every_stream
def test_after_a_backfill(d: int, spectrum: str) -> None:
    """Which has scored nothing: the topic's messages are scored by the model that knows it."""
    messages, config = Messages(spectrum, d), config_of(d)
    backfill = BackfillPlan("readings", config, FileOptions("v"))
    batches = [pa.record_batch([column_of(messages(5000))], ["v"])]
    checkpoint = merge([fold_batches(batches, backfill)], backfill)
    partitions = Partitions(messages, 8, config)
    partitions.checkpoints.save(checkpoint)
    partitions.grow(1190)
    check(of(partitions.publish()), messages)


@every_stream
def test_after_a_change_of_regime_with_a_half_life(d: int, spectrum: str) -> None:
    """Variances that were nine times as large are forgotten after fifteen half-lives."""
    messages, pca = Messages(spectrum, d), StreamingPCA(K, half_life=1000)
    pca.fit(3 * messages(5000)[:, ::-1])
    pca.partial_fit(messages(15_000))
    check(of_estimator(pca), messages)
