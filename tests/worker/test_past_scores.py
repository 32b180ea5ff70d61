"""Each version knows how the messages before it scored, by versions that had not learned them."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.pca import scoring
from streampca.pca.arrays import Array
from streampca.pca.learning import BLOCK
from streampca.pca.model import Model
from streampca.pca.scoring import Calibration
from streampca.worker.publisher import Publisher
from tests.fold.streams import WARM_UP, fold_config, folded, vectors
from tests.worker.test_publisher import PublisherFixture

MESSAGES = vectors(3000)
LEARNED = WARM_UP + BLOCK  # messages of which none is pending


class Stream(PublisherFixture):
    """Two partitions that grow; publishes after each step."""

    def __init__(self, fold_config: FoldConfig) -> None:
        super().__init__(fold_config)
        self.streams = dict(enumerate(np.array_split(MESSAGES, 2)))
        self.at = dict.fromkeys(self.streams, 0)

    def grow(self, partition: int, n: int) -> Array:
        """Learn n more messages of a partition; returns those that are pending then."""
        self.at[partition] += n
        V = self.streams[partition][: self.at[partition]]
        fold = folded(self._empty(), V, self.fold_config, None, None, [len(V)])
        self.save(partition, fold)
        return fold.pending

    def _empty(self) -> Fold:
        return Fold.empty(self.fold_config.learning)


def scored(by: PublishedModel, V: Array, into: Calibration | None = None, kept: float = 1.0) -> Calibration:
    scores = scoring.score(by.model, V)
    return (into or Calibration.empty()).with_scores(scores, by.model.noise_variance, kept)


def same(published: PublishedModel, expected: Calibration) -> bool:
    assert published.calibration is not None
    return np.allclose(published.calibration.weights, expected.weights, rtol=1e-9)


@pytest.fixture
def stream() -> Stream:
    return Stream(fold_config())


def test_pending_messages_are_scored_by_the_version_before(stream: Stream) -> None:
    stream.grow(0, LEARNED)
    first = stream.publish()
    assert first.calibration is None
    pending = [stream.grow(0, 400), stream.grow(1, 330)]
    second = stream.publish()
    assert all(map(len, pending))
    assert same(second, scored(first, np.concatenate(pending)))
    assert stream.p_values is None
    third_pending = stream.grow(1, 300)
    third = stream.publish()
    assert same(
        third, scored(second, third_pending, scored(first, np.concatenate(pending)), np.exp(-300 / third.version))
    )
    scores = scoring.score(second.model, third_pending)
    expected = second.calibration.p_values(scores, second.model.noise_variance)
    np.testing.assert_array_equal(stream.p_values, expected.score)


def test_those_of_the_first_version_are_scored_by_the_merged_folds_without_them(stream: Stream) -> None:
    """So a topic that is loaded once has p-values."""
    pending = [stream.grow(0, 300), stream.grow(1, 400)]
    learned = np.concatenate([part[:LEARNED] for part in stream.streams.values()])
    model = known(PCA(2).fit(learned), len(learned))  # d = 5: learned exactly
    expected = Calibration.empty().entered(scoring.score(model, np.concatenate(pending)), model.noise_variance)
    assert expected.weight == 24 + 124
    calibration = stream.publish().calibration
    assert np.abs(calibration.weights.cumsum(axis=1) - expected.weights.cumsum(axis=1)).max() <= 1  # at edges of bins
    assert stream.p_values is None


def known(pca: PCA, n: int) -> Model:
    variance = pca.explained_variance_ * (n - 1) / n
    total = variance.sum() + pca.noise_variance_ * (pca.n_features_in_ - len(variance)) * (n - 1) / n
    return Model(pca.components_, variance, pca.mean_, float(total), float(n))


def test_a_message_is_scored_once(stream: Stream) -> None:
    """Messages stay pending over several versions while few arrive."""
    stream.grow(0, LEARNED)
    stream.publish()
    weights = []
    for n in (10, 5, 1):
        stream.grow(0, n)
        weights.append(stream.publish().calibration.weight)
    assert weights == pytest.approx([10, 15, 16], rel=0.02)


def test_a_partition_that_did_not_move_is_not_scored_again(stream: Stream) -> None:
    stream.grow(0, LEARNED)
    stream.grow(1, LEARNED)
    stream.publish()
    pending = stream.grow(0, 300)
    assert stream.publish().calibration.weight == len(pending)


def test_scores_are_forgotten_as_messages_are() -> None:
    stream = Stream(fold_config(half_life_messages=100))
    stream.grow(0, LEARNED)
    stream.publish()
    before = len(stream.grow(0, 300))
    assert stream.publish().calibration.weight == before
    new = len(stream.grow(0, 300))
    assert stream.publish().calibration.weight == pytest.approx(new + before / 8, rel=0.05)


def test_another_publisher_continues_from_the_newest_version(stream: Stream) -> None:
    stream.grow(0, LEARNED)
    stream.publish()
    pending = stream.grow(0, 300)
    stream.publish()
    stream.publisher = Publisher(stream.checkpoints, stream.models, stream.fold_config, lambda: 0.0)
    more = stream.grow(0, 300)
    assert stream.publish().calibration.weight == pytest.approx(
        len(pending) * np.exp(-300 / (LEARNED + 600)) + len(more), rel=0.01
    )
