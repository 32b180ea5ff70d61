"""The guard refuses outliers by a rule on the partition's records alone, and opens when the stream has changed."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.errors import DamagedFileError
from streampca.pca import anomaly, axes
from streampca.pca.arrays import Array
from streampca.pca.histogram import BINS, bins_of
from streampca.pca.state_scores import StateScorer
from streampca.stream import checkpoint as files
from streampca.stream import guard, npz, screening
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.guard import Guard
from streampca.stream.screening import Screening
from tests.stream.streams import D, bits, fold_config, fold_of, vectors
from tests.stream.test_plausibility import event

P = 0.005
GUARDED = Screening(1e4, P)
CONFIGS = {
    "plain": fold_config(),
    "float32": fold_config(dtype="float32"),
    "half-life": fold_config(half_life_messages=300.0),
    "all directions": fold_config(components=D, oversampling=0),
    "not centred": fold_config(center=False),
}


def stream(config: FoldConfig, seed: int, largest: int = 1) -> list[Array]:
    """Records of up to `largest` vectors; 1 % have an outlier, and in the last third all vectors have another scale."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, largest + 1, 1500)
    messages = np.split(vectors(int(sizes.sum()), seed=seed), np.cumsum(sizes)[:-1])
    for i in np.flatnonzero(random.random(len(messages)) < 0.01):
        messages[i][0] *= random.choice([5.0, 20.0, 1e7])
    return [message.astype(config.learning.dtype) * (1 if i < 1000 else 9) for i, message in enumerate(messages)]


def learned(
    messages: Sequence[Array], config: FoldConfig, chunks: Sequence[int], screen: Screening = GUARDED, *, restart: bool
) -> tuple[Fold, dict[int, str]]:
    """The fold after the messages in chunks of these sizes, and the reasons of the refused ones by offset."""
    fold, start, refused = Fold.empty(config.learning), 0, {}
    for size in chunks:
        offsets = range(start, start + size)
        fold, _, rejects = screening.learn(fold, event(messages[start : start + size], offsets), config, screen)
        refused |= {offsets[reject.place]: reject.reason for reject in rejects}
        start += size
        if restart:
            fold = files.decode(bits(fold, config)).fold
    return fold, refused


@pytest.mark.parametrize("name", CONFIGS)
@given(seed=st.integers(0, 10**6), largest=st.sampled_from([1, 4]), data=st.data())
@settings(max_examples=3, deadline=None)
def test_any_chunks_and_restarts_give_the_same_bits(name: str, seed: int, largest: int, data: st.DataObject) -> None:
    config = CONFIGS[name]
    messages = stream(config, seed, largest)
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=20))
    sizes = [int(size) for size in np.diff([0, *sorted(cuts), len(messages)])]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guard, "RECENT", 200)
        patched.setattr(guard, "MOST", 5)
        patched.setattr(files, "RECENT", 200)
        fold, refused = learned(messages, config, [len(messages)], restart=False)
        assert learned(messages, config, sizes, restart=True)[1] == refused
        assert bits(learned(messages, config, sizes, restart=True)[0], config) == bits(fold, config)


def test_one_record_at_a_time_gives_the_same_bits() -> None:
    config = fold_config()
    messages = stream(config, 0)
    fold, refused = learned(messages, config, [len(messages)], restart=False)
    one, one_refused = learned(messages, config, [1] * len(messages), restart=False)
    assert bits(one, config) == bits(fold, config)
    assert one_refused == refused
    assert "outlier" in refused.values()


def test_gaps_change_nothing_of_this() -> None:
    config, random = fold_config(impute=True), np.random.default_rng(0)
    messages = stream(config, 2, largest=2)
    for message in messages:
        message[np.arange(len(message)), random.integers(0, D, len(message))] *= random.choice(
            [1, np.nan], len(message)
        )
    fold, refused = learned(messages, config, [1500], restart=False)
    cut, cut_refused = learned(messages, config, [400, 1, 1, 98, 333, 667], restart=True)
    assert bits(cut, config) == bits(fold, config)
    assert cut_refused == refused
    assert "outlier" in refused.values()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_state_scores_as_its_model(name: str) -> None:
    config, V = CONFIGS[name], vectors(700, dtype=CONFIGS[name].learning.dtype)
    state, k = fold_of(V, config).state, config.learning.components
    model = axes.model_of(state, k)
    expected, scorer = anomaly.score(model, vectors(100, seed=1)), StateScorer(state, k)
    np.testing.assert_allclose(scorer.sigma2, anomaly.noise_variance(model), rtol=1e-3, atol=1e-6)
    if k < D:
        for found, wanted in zip(scorer.scores(vectors(100, seed=1), 5), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3 if "32" in name else 1e-7)


def test_the_scores_are_those_of_the_definition() -> None:
    """A record is judged by the scores before its block; then all of the block are entered, learned or not."""
    config, V = fold_config(), vectors(3000, seed=3)
    V[1500:1800:10] *= 4
    found, refused = learned([v[None] for v in V], config, [3000], Screening(0, P), restart=False)
    fold, weights, entered, expected = Fold.empty(config.learning), np.zeros(BINS), np.zeros(BINS), []
    for i, v in enumerate(V):
        if fold.state.count:
            score = StateScorer(fold.state, 2).scores(v[None], int(entered.sum())).score
            place = bins_of(score)[0]
            entered[place] += 1
            if (1 + weights[place:].sum()) / (1 + weights.sum()) <= P:
                expected.append(i)
                continue
        before = fold.state.count
        fold = fold.learn(v[None], [1000 * i], i + 1, config)[0]
        if before != fold.state.count:
            n = fold.state.count - before
            weights, entered = weights * np.exp(-n / fold.state.weight) * (1 - 1 / 20_000) ** n + entered, 0 * entered
    assert len(expected) > 10
    assert list(refused) == expected
    assert found.guard is not None
    np.testing.assert_allclose(found.guard.weights, [weights, entered], rtol=1e-12)
    np.testing.assert_array_equal(found.state.C, fold.state.C)


def test_a_stream_that_changes_opens_the_guard_until_it_is_known() -> None:
    config, V = fold_config(), np.concatenate([vectors(3000), 20 * vectors(30_000, seed=1)])
    folds, refused, fold = [], [], Fold.empty(config.learning)
    for start in range(0, len(V), 500):
        offsets = range(start, start + 500)
        fold, _, rejects = screening.learn(fold, event([v[None] for v in V[offsets]], offsets), config, GUARDED)
        folds.append(fold)
        refused += [offsets[reject.place] for reject in rejects]
    opened = [after.guard.is_open for after in folds if after.guard]
    changed = [offset for offset in refused if 3000 <= offset < 12_000]
    assert len(changed) <= guard.MOST < len(changed) + sum(offset < 3000 for offset in refused) + 1
    assert max(changed) < 3200
    assert not any(opened[:6])
    assert opened[7:20] == [True] * 13
    assert not opened[-1]
    assert fold.guard is not None
    assert fold.guard.learned > 0
    assert len(refused) < 0.01 * len(V)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_refused_record_names_the_dimensions_that_make_its_score(name: str) -> None:
    config = CONFIGS[name]
    V = vectors(1501, dtype=config.learning.dtype)
    V[1500, 3] += 40
    found = screening.learn(Fold.empty(config.learning), event([v[None] for v in V], range(1501)), config, GUARDED)
    assert found.rejects[-1].place == 1500
    assert re.search(r"score as high.* the dimensions 3 \([0-9]+ %\), ", found.rejects[-1].message)


def test_contributions_are_those_of_the_model() -> None:
    state, V = fold_of(vectors(700), fold_config()).state, vectors(20, seed=1)
    model, scorer = axes.model_of(state, 2), StateScorer(state, 2)
    of_t2, of_spe = anomaly.contributions(model, V)
    expected = of_t2 + np.abs(of_spe) / scorer.sigma2
    for v, parts in zip(V, expected, strict=True):
        found = scorer.contributions(v, D)
        assert [share for _, share in found] == sorted((share for _, share in found), reverse=True)
        assert dict(found) == pytest.approx(dict(enumerate(parts / parts.sum())), abs=1e-9)


def test_a_young_histogram_refuses_nothing() -> None:
    config, V = fold_config(), vectors(900)
    V[850] *= 1e3
    assert learned([v[None] for v in V], config, [900], Screening(0, 0.001), restart=False)[1] == {}


def test_a_constant_stream_has_no_outliers() -> None:
    config = fold_config()
    fold, refused = learned([np.ones((1, D))] * 3000, config, [3000], restart=False)
    assert refused == {}
    assert fold.guard is not None
    assert fold.guard.weights.sum() > 1000


def test_a_record_is_an_outlier_by_its_most_unusual_vector() -> None:
    config, V = fold_config(), vectors(4000)
    messages = [v[None] for v in V[:3000]]
    assert 3000 in learned([*messages, V[3000:3002] * [[1], [50]]], config, [3001], restart=False)[1]
    many = V[3000:].copy()
    many[7] *= 50
    assert 3000 not in learned([*messages, many], config, [3001], restart=False)[1]  # too many to be sure


def test_without_a_guard_the_checkpoint_is_that_of_older_releases() -> None:
    config, V = fold_config(), vectors(600)
    guarded = learned([v[None] for v in V], config, [600], restart=False)[0]
    assert npz.decode(bits(guarded, config), files.KIND, 3)[0]["guard"] == {"judged": 580, "learned": 0}
    off = screening.learn(guarded, event([], []), config, Screening()).fold
    assert bits(off, config) == bits(replace(guarded, guard=None), config)
    assert npz.decode(bits(off, config), files.KIND, 2)[0]["format_version"] == 2


def test_a_file_of_version_2_is_continued_with_a_guard() -> None:
    data = (Path(__file__).parent / "checkpoint-version-2.npz").read_bytes()
    loaded, config = files.decode(data), fold_config()
    assert (loaded.fold.guard, loaded.settings) == (None, config.as_dict())
    assert files.encode(loaded) == data
    offsets = range(loaded.fold.position, loaded.fold.position + 2000)
    V = vectors(2000, seed=1)
    V[1900] *= 30
    after = screening.learn(loaded.fold, event([v[None] for v in V], offsets), config, GUARDED)
    assert 1900 in [reject.place for reject in after.rejects]


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ({"guard": {"judged": -1, "learned": 0}}, {}),
        ({"guard": {"judged": 1}}, {}),
        ({"guard": None}, {}),
        ({}, {"guard_scores": np.zeros((1, 3))}),
        ({}, {"guard_scores": np.array([[2, 0, 1.0]])}),
        ({}, {"guard_scores": np.array([[1, 0, 1.5]])}),
        ({}, {"guard_outliers": np.zeros(1)}),
        ({}, {"guard_outliers": np.array([3, 3])}),
        ({}, {"guard_outliers": np.array([-1])}),
        ({}, {"guard_outliers": np.array([580])}),
    ],
)
def test_a_damaged_guard_is_refused(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    config = fold_config()
    fold = learned([v[None] for v in vectors(600)], config, [600], restart=False)[0]
    header_before, arrays_before = npz.decode(bits(fold, config), files.KIND, 3)
    with pytest.raises(DamagedFileError):
        files.decode(npz.encode({**header_before, **header}, {**arrays_before, **arrays}))


def test_guards_of_different_records_are_not_shared() -> None:
    one, other = Guard(), Guard()
    one.weights[0, 0] = 1
    assert other.weights.sum() == 0
