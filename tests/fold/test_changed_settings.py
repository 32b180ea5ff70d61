"""Settings that change after something was learned: what keeps its meaning is kept, and the rest is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.errors import SettingsError
from streampca.fold.checkpoint import Checkpoint, decode, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger
from streampca.fold.partitions import FIRST_BACKFILL
from streampca.pca.arrays import F64
from streampca.pca.state import State
from tests.errors import refusal
from tests.fold.streams import CONFIG, D, bits, fold_config, learn, make_checkpoint, make_fold, vectors
from tests.pca.streams import batch_pca, covariance

N = 700


def adopt(fold: Fold, then: FoldConfig, now: FoldConfig, partition: int = 0) -> Checkpoint:
    """As a file, which must be readable."""
    return decode(encode(make_checkpoint(fold, then, partition).adopt_settings(now)))


def take(fold: Fold, V: F64, config: FoldConfig) -> Fold:
    return learn(fold, V, [-1] * len(V), fold.position + len(V), config)[0]


def merged_state(fold: Fold, config: FoldConfig) -> State:
    merger = FoldMerger(config)
    merger.add(fold)
    state = merger.state(config.learning.components)
    assert state is not None
    return state


@settings(max_examples=20)
@given(
    before=st.integers(1, 600), after=st.integers(0, 300), then=st.integers(1, D), now=st.integers(1, D),
    standardize=st.booleans(), impute=st.booleans(),
)  # fmt: skip
def test_the_model_after_other_components_were_adopted_is_that_of_batch_pca(
    before: int, after: int, then: int, now: int, standardize: bool, impute: bool
) -> None:
    """Up to 768 dimensions: whatever was pending, and with more or fewer components than before."""
    options: dict[str, Any] = {"standardize": standardize, "impute": impute}
    old = fold_config(components=then, **options)
    new = fold_config(components=now, **options)
    V = vectors(before + after)
    adopted = adopt(make_fold(V[:before], old), old, new)
    assert adopted.settings == new.as_dict()
    fold = take(adopted.fold, V[before:], new)
    assert (fold.stats.learned, fold.position) == (before + after, before + after)
    if before + after > 1 and not standardize:
        expected = covariance(V)
        found = merged_state(fold, new).variance
        variances = np.linalg.eigvalsh(expected)[::-1][: len(found)]
        np.testing.assert_allclose(found, variances, rtol=0.15, atol=1e-6 * variances[0])


@given(before=st.integers(1, 15), then=st.integers(1, D), now=st.integers(1, D))
def test_before_the_first_block_the_adopted_fold_is_the_fold_of_the_new_settings(
    before: int, then: int, now: int
) -> None:
    old = fold_config(components=then, half_life_messages=50.0)
    new = fold_config(components=now, oversampling=0, half_life_messages=50.0)
    V = vectors(400)
    fold = take(adopt(make_fold(V[:before], old), old, new).fold, V[before:], new)
    assert bits(fold, new) == bits(make_fold(V, new), new)


def test_nothing_else_of_a_fold_changes() -> None:
    """Neither its position, its times and its last record, nor how many messages have learned."""
    V = vectors(N)
    times = list(range(1000, 1000 + N))
    fold = make_fold(V, CONFIG, times)
    new = fold_config(components=3, half_life_seconds=60.0)
    adopted = adopt(fold, CONFIG, new).fold
    assert (adopted.position, adopted.event_time, adopted.last) == (fold.position, fold.event_time, fold.last)
    assert adopted.stats.learned == fold.stats.learned
    assert adopted.stats.with_loss + len(adopted.pending) == fold.stats.with_loss + len(fold.pending)


def test_messages_lose_weight_by_the_new_half_life_from_then_on() -> None:
    new = fold_config(half_life_messages=100.0)
    adopted = adopt(make_fold(vectors(N), CONFIG), CONFIG, new).fold
    weight = take(adopted, vectors(2000, seed=1), new).state.weight
    assert weight == pytest.approx(100 / np.log(2), rel=0.02)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_without_a_covariance_only_fewer_components_are_adopted(standardize: bool, gaps: bool) -> None:
    """Also where a smaller number means that the covariance is not kept any more."""
    options: dict[str, Any] = {"standardize": standardize, "impute": gaps}
    factor = fold_config(factor=True, components=3, **options)
    V = vectors(N)
    if gaps:
        V[: N // 2, 0] = np.nan
    fold = make_fold(V, factor)
    text = refusal(SettingsError, adopt, fold, factor, fold_config(factor=True, components=4, **options))
    assert "components=3 (now 4): beyond 768 dimensions" in text
    fewer = fold_config(factor=True, components=2, oversampling=0, **options)
    for then, kept in ((factor, fold), (fold_config(components=3, **options), None)):
        adopted = adopt(kept or make_fold(V, then), then, fewer).fold
        assert adopted.state.covariance is None
        model = merged_state(take(adopted, V, fewer), fewer)
        assert model.rank == 2
        if not gaps and not standardize:
            np.testing.assert_allclose(model.variance, batch_pca(np.vstack([V, V]), 2).explained_variance, rtol=0.15)


REASONS = {
    "dimensions": (fold_config(dimensions=6), "length"),
    "center": (fold_config(center=False), "point"),
    "standardize": (fold_config(standardize=True), "units"),
    "dtype": (fold_config(dtype="float32"), "rounded"),
    "missing": (fold_config(impute=True), "other vectors"),
    "format": (replace(CONFIG, format="npy"), "other vectors"),
    "names": (replace(CONFIG, names=list("edcba"), field="e,d,c,b,a"), "name"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_would_make_learning_meaningless_is_refused_with_its_reason(name: str) -> None:
    """Also together with settings that may change."""
    other, word = REASONS[name]
    then = replace(CONFIG, names=list("abcde"), field="a,b,c,d,e") if name == "names" else CONFIG
    for now in (other, replace(other, half_life_messages=9.0)):
        before = replace(make_checkpoint(make_fold(vectors(N), then), then), names=then.names)
        text = refusal(SettingsError, before.adopt_settings, now)
        assert f"{name}=" in text
        assert word in text.partition(f"{name}=")[2]
        assert "half_life" not in text
        text = refusal(SettingsError, before.refuse_other_settings, now)
        assert "--adopt-settings" not in text
        assert "start over" in text


@pytest.mark.parametrize(
    "now",
    [
        fold_config(components=3),
        fold_config(components=1),
        fold_config(oversampling=3),
        fold_config(half_life_messages=9.0),
        fold_config(half_life_seconds=9.0),
        replace(CONFIG, field="elsewhere"),
    ],
)
@pytest.mark.parametrize("partition", [0, FIRST_BACKFILL])
def test_the_error_about_changed_settings_names_the_command_that_adopts_them(now: FoldConfig, partition: int) -> None:
    before = make_checkpoint(make_fold(vectors(N), CONFIG), CONFIG, partition)
    if before.find_changes(now):
        assert "`streampca reset --adopt-settings`" in refusal(SettingsError, before.refuse_other_settings, now)
    adopted = adopt(before.fold, CONFIG, now, partition)
    adopted.adapt_to(now)
    assert not adopted.find_changes(now)
