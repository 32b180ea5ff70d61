"""The published model: what its header says of the folds, and the signs of its axes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.fold.fold import Fold
from streampca.fold.merging import Merged, MergedFolds
from streampca.fold.model_file import PublishedModel, decode, encode
from streampca.fold.publishing import published_model
from streampca.pca.learning import BLOCK
from streampca.pca.scoring import Calibration
from tests.fold.streams import D, checkpoint_of, fold_config, fold_of, vectors

CONFIG = fold_config()


def published(folds: Sequence[Fold], previous: PublishedModel | None = None) -> PublishedModel:
    merging = MergedFolds(CONFIG)
    for partition, fold in enumerate(folds):
        merging.add_partition(checkpoint_of(fold, CONFIG, partition))
    merged = merging.merged()
    assert merged is not None
    model = published_model(merged, CONFIG, Calibration.empty(), 1234.5, previous)
    assert encode(decode(encode(model))) == encode(model)
    return model


def test_the_version_is_the_number_of_learned_messages() -> None:
    model = published([fold_of(vectors(n, seed=n), CONFIG).reject(["no_value"] * n) for n in (300, 7, 90)])
    assert (model.version, model.rejected) == (397, 397)
    assert model.positions == {0: 300, 1: 7, 2: 90}
    assert (model.topic, model.topic_id, model.published_at) == ("readings", "id-1", 1234.5)
    assert model.settings == CONFIG.as_dict()
    assert model.calibration is None


def test_losses_average_all_scored_messages() -> None:
    folds = [fold_of(vectors(n, seed=n), CONFIG) for n in (600, 7, 300)]
    stats, model = [fold.stats for fold in folds], published(folds)
    scored = sum(s.with_loss for s in stats)
    assert scored == 2 * BLOCK + BLOCK
    loss, norm = (sum(s.with_loss * getattr(s, name) for s in stats) / scored for name in ("loss", "norm"))
    assert model.loss == pytest.approx(loss)
    assert model.loss_ratio == pytest.approx(loss / norm)
    ewma = [sum(s.with_loss * getattr(s, name) for s in stats) for name in ("loss_ewma", "norm_ewma")]
    assert model.loss_ewma == pytest.approx(ewma[0] / ewma[1])


@pytest.mark.parametrize(("V", "expected"), [(vectors(15), None), (np.ones((300, D)), 0)])
def test_losses_before_the_first_and_of_a_stream_without_variance(V: Any, expected: float | None) -> None:
    model = published([fold_of(V, CONFIG)])
    assert (model.loss, model.loss_ratio, model.loss_ewma) == (expected,) * 3


def test_first_and_last_timestamps_over_all_partitions() -> None:
    folds = [fold_of(vectors(3, seed=i), CONFIG, stamps) for i, stamps in enumerate(([500, 100, 300], None, [-1] * 3))]
    folds.append(fold_of(vectors(2, seed=9), CONFIG, [900, -1]))
    assert (published(folds).first_timestamp_ms, published(folds).last_timestamp_ms) == (100, 900)
    assert (published(folds[1:3]).first_timestamp_ms, published(folds[1:3]).last_timestamp_ms) == (-1, -1)


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_signs_follow_the_previous_version(signs: tuple[int, int]) -> None:
    V = np.random.default_rng(4).standard_normal((160, D)) * [9, 4, 2, 1, 0.5]  # components keep their order
    first = published([fold_of(V[:100], CONFIG)])
    flipped = replace(first.model, components=first.model.components * np.array(signs)[:, None])
    second = published([fold_of(V, CONFIG)], replace(first, model=flipped))
    assert (np.sum(second.model.components * flipped.components, axis=1) > 0.5).all()


def test_one_fold_alone_is_published_without_a_topic() -> None:
    fold = fold_of(vectors(300), CONFIG)
    model = published_model(Merged.alone(fold, CONFIG), CONFIG, Calibration.empty(), 0.0)
    assert (model.version, model.topic, model.positions, model.subspace_error) == (300, "", {}, None)
    assert model.model.components == pytest.approx(published([fold]).model.components, abs=1e-9)
