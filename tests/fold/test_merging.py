"""Merged folds: with all components, the covariance of all messages, decayed to a common time; and their model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.errors import SettingsError, TopicReplacedError
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger, MergedFold
from streampca.fold.model_file import PublishedModel, decode, encode
from streampca.pca.arrays import F64, Array
from streampca.pca.learning_config import SHORT_BLOCK
from streampca.pca.past_scores import PastScores
from streampca.pca.state import State
from tests.errors import refusal
from tests.fold.streams import CONFIG, D, fold_config, make_checkpoint, make_fold, vectors
from tests.pca.streams import covariance, find_covariance, jackknife, make_merger

EXACT = fold_config(components=D)
HOUR_MS = 3600 * 1000


def merged_folds(folds: Sequence[Fold], config: FoldConfig, now_ms: int = 2 * 10**12) -> FoldMerger:
    merged = FoldMerger(config, now_ms)
    for partition, fold in enumerate(folds):
        merged.add_partition(make_checkpoint(fold, config, partition))
    return merged


def assert_covariance(state: State, V: Array, weights: F64 | None = None) -> None:
    np.testing.assert_allclose(find_covariance(state), covariance(V, weights), atol=1e-9)


@pytest.mark.parametrize("counts", [(1,), (2,), (19,), (20,), (21,), (1, 1), (19, 3), (300, 7, 90), (84, 148)])
def test_with_all_components_the_covariance_is_that_of_all_messages(counts: tuple[int, ...]) -> None:
    parts = [vectors(n, seed=n + 10) + i for i, n in enumerate(counts)]
    state, everything = merged_folds([make_fold(V, EXACT) for V in parts], EXACT).merge().state, np.vstack(parts)
    assert_covariance(state, everything)
    np.testing.assert_allclose(state.mean, everything.mean(axis=0), atol=1e-12)
    assert state.total_variance == pytest.approx(np.trace(covariance(everything)), abs=1e-12)
    assert state.weight == pytest.approx(sum(counts))


def test_a_model_has_the_names_of_its_partitions_which_must_agree() -> None:
    def merged(*names: str, config: FoldConfig = CONFIG) -> PublishedModel:
        folds = FoldMerger(config)
        for partition, own in enumerate(names):
            checkpoint = make_checkpoint(make_fold(vectors(40), config), config, partition)
            folds.add_partition(replace(checkpoint, names=list(own) or None))
        return decode(encode(folds.merge().make_published_model(config, PastScores.empty(), 0.0)))

    named = replace(CONFIG, names=list("abcde"))
    assert merged("", "").names is None
    for of_partitions, config in [(["", "abcde", ""], CONFIG), (["abcde", ""], named), ([""], named)]:
        assert merged(*of_partitions, config=config).names == list("abcde")
    for other in ("edcba", "abcdx"):
        text = refusal(SettingsError, merged, "abcde", other)
        assert "named a, b, c, d, e by the settings or another checkpoint, but " in text
        assert f", but {', '.join(other)} by the checkpoint of partition 1" in text
    alone = MergedFold.from_fold(make_fold(vectors(40), named), named)
    assert alone.make_published_model(named, PastScores.empty(), 0.0).names == named.names


def test_states_positions_and_losses_are_those_of_the_partitions() -> None:
    folds = [make_fold(vectors(n, seed=n), CONFIG) for n in (600, 7, 390)]
    merged, config = merged_folds(folds, CONFIG).merge(), CONFIG.learning
    expected = make_merger([fold.provisional(config) for fold in folds], config.columns).state(D, config.dtype)
    assert merged.state.C.tobytes() == expected.C.tobytes()
    assert merged.state.mean.tobytes() == expected.mean.tobytes()
    assert (merged.topic, merged.topic_id) == ("readings", "id-1")
    assert merged.positions == {0: 600, 1: 7, 2: 390}
    stats = {partition: folds[partition].stats for partition in (0, 2)}
    assert merged.losses == {p: of_one.loss_ewma / of_one.norm_ewma for p, of_one in stats.items()}


@pytest.mark.parametrize(
    ("stamps", "now_ms", "shares"),
    [
        ((10**12, 10**12 + 20_000), 2 * 10**12, (0.25, 1)),  # without messages for two half-lives
        ((10**12, 10**12 + HOUR_MS, 10**12 - 20_000), 10**12, (1, 1, 0.25)),  # ahead of the clock: current
        ((-1, 10**12), 2 * 10**12, (1, 1)),  # unknown: current
    ],
)
def test_folds_are_decayed_to_a_common_time(stamps: Sequence[int], now_ms: int, shares: Sequence[float]) -> None:
    config = fold_config(components=D, half_life_seconds=10.0)
    parts = [vectors(200, seed=i) + i for i in range(len(stamps))]
    folds = [make_fold(V, config, [stamp] * 200) for V, stamp in zip(parts, stamps, strict=True)]
    state = merged_folds(folds, config, now_ms).merge().state
    assert_covariance(state, np.vstack(parts), np.repeat(shares, 200))
    assert state.weight == pytest.approx(200 * sum(shares))


@pytest.mark.parametrize("half_life", [None, 150.0])
def test_appended_folds_are_learned_as_one_stream(half_life: float | None) -> None:
    config, V = fold_config(components=D, half_life_messages=half_life), vectors(900)
    folds = FoldMerger(config)
    for part in np.split(V[:700], [300, 310]):
        folds.append(make_fold(part, config))
    fold = folds.make_fold(700)
    whole = make_fold(V[:700], config)
    assert (fold.position, fold.stats.learned) == (700, 700)
    assert fold.state.weight == pytest.approx(whole.provisional(config.learning).weight)
    assert_covariance(fold.state, V[:700], 0.5 ** (np.arange(700)[::-1] / (half_life or np.inf)))


def test_parts_too_short_for_a_time_are_appended_at_their_last_timestamp() -> None:
    config = fold_config(components=D, half_life_seconds=1.0)
    folds, parts = FoldMerger(config), [vectors(10, seed=i) for i in range(3)]
    for second, part in enumerate(parts):
        folds.append(make_fold(part, config, [10**12 + 1000 * second] * 10))
    assert folds.make_fold(30).event_time.now_ms == 10**12 + 2000
    assert_covariance(folds.make_fold(30).state, np.vstack(parts), np.repeat([0.25, 0.5, 1.0], 10))


def test_the_sampling_error_is_that_of_four_or_more_partitions_with_messages() -> None:
    folds = [make_fold(vectors(n, seed=n), CONFIG) for n in (300, 107, 190, 250)]
    assert merged_folds([*folds[:3], Fold.empty(CONFIG.learning).skip(7)], CONFIG).merge().sampling_error is None
    states = [fold.provisional(CONFIG.learning) for fold in folds]
    expected = jackknife(states, CONFIG.learning.components, CONFIG.learning.columns)
    error = merged_folds(folds, CONFIG).merge().sampling_error
    assert (error.subspace_square, error.axis_angles.tolist()) == (
        expected.subspace_square,
        expected.axis_angles.tolist(),
    )


def test_without_messages_nothing_is_merged() -> None:
    folds = merged_folds([Fold.empty(CONFIG.learning).skip(7)], CONFIG)
    assert folds.merge() is None
    assert folds.state(2) is None
    assert folds.make_fold(0).state.count == 0


def test_folds_of_a_replaced_topic_are_refused() -> None:
    folds = merged_folds([make_fold(vectors(100), CONFIG)], CONFIG)
    other = make_checkpoint(make_fold(vectors(100), CONFIG), CONFIG, 1)
    refusal(TopicReplacedError, folds.add_partition, type(other)(other.topic, "id-2", 1, other.fold, other.settings))


def published(folds: Sequence[Fold]) -> PublishedModel:
    model = merged_folds(folds, CONFIG).merge().make_published_model(CONFIG, PastScores.empty(), 1234.5)
    assert encode(decode(encode(model))) == encode(model)
    return model


def test_the_version_is_the_number_of_learned_messages() -> None:
    model = published([make_fold(vectors(n, seed=n), CONFIG).count_rejects(["undecodable"] * n) for n in (300, 7, 90)])
    assert (model.version, model.stats.rejected) == (397, 397)
    assert model.positions == {0: 300, 1: 7, 2: 90}
    assert (model.topic, model.topic_id, model.published_at) == ("readings", "id-1", 1234.5)
    assert model.settings == CONFIG.as_dict()
    assert model.past_scores is None


@pytest.mark.parametrize("factor", [False, True])
def test_a_standardised_model_has_its_scale(factor: bool) -> None:
    config = fold_config(standardize=True, factor=factor)
    parts = [vectors(n, seed=n) * (1 + n) for n in (300, 90)]
    merged = merged_folds([make_fold(V, config) for V in parts], config).merge()
    model = decode(encode(merged.make_published_model(config, PastScores.empty(), 0.0))).model
    assert model.scale == pytest.approx(1 / np.vstack(parts).std(axis=0), rel=1e-9)
    assert model.total_variance == pytest.approx(D)


def test_losses_average_all_scored_messages() -> None:
    folds = [make_fold(vectors(n, seed=n), CONFIG) for n in (600, 7, 300)]
    stats, model = [fold.stats for fold in folds], published(folds)
    scored = sum(s.with_loss for s in stats)
    assert scored == 2 * SHORT_BLOCK + SHORT_BLOCK
    loss, norm = (sum(s.with_loss * getattr(s, name) for s in stats) / scored for name in ("loss", "norm"))
    assert model.stats.loss == pytest.approx(loss)
    assert model.stats.loss_ratio == pytest.approx(loss / norm)
    ewma = [sum(s.with_loss * getattr(s, name) for s in stats) for name in ("loss_ewma", "norm_ewma")]
    assert model.stats.loss_ewma == pytest.approx(ewma[0] / ewma[1])


@pytest.mark.parametrize(("V", "expected"), [(vectors(15), None), (np.ones((300, D)), 0)])
def test_losses_before_the_first_and_of_a_stream_without_variance(V: Any, expected: float | None) -> None:
    model = published([make_fold(V, CONFIG)]).stats
    assert (model.loss, model.loss_ratio, model.loss_ewma) == (expected,) * 3


def test_first_and_last_timestamps_over_all_partitions() -> None:
    folds = [
        make_fold(vectors(3, seed=i), CONFIG, stamps) for i, stamps in enumerate(([500, 100, 300], None, [-1] * 3))
    ]
    folds.append(make_fold(vectors(2, seed=9), CONFIG, [900, -1]))
    for some, expected in ((folds, (100, 900)), (folds[1:3], (-1, -1))):
        stats = published(some).stats
        assert (stats.first_timestamp_ms, stats.last_timestamp_ms) == expected


def test_a_single_fold_is_published_without_a_topic() -> None:
    fold = make_fold(vectors(300), CONFIG)
    model = MergedFold.from_fold(fold, CONFIG).make_published_model(CONFIG, PastScores.empty(), 0.0)
    assert (model.version, model.topic, model.positions, model.subspace_error) == (300, "", {}, None)
    assert model.model.components == pytest.approx(published([fold]).model.components, abs=1e-9)
