"""Implausible records are rejected by a rule on the partition's records alone; the rest is learned as without them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import axes, learning
from streampca.pca.arrays import Array
from streampca.stream import checkpoint as files
from streampca.stream import screening
from streampca.stream.decoded import Decoded
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import PlainRecord
from streampca.stream.screening import Learned
from tests.stream.streams import WARM_UP, D, bits, fold_config, fold_of, vectors

FACTOR = 1e4
CONFIGS = {
    "plain": fold_config(),
    "float32": fold_config(dtype="float32"),
    "half-life in messages": fold_config(half_life_messages=3.0),
    "half-life in seconds": fold_config(half_life_seconds=0.5),
    "not centred": fold_config(center=False),
}


def event(messages: Sequence[Array], offsets: Sequence[int]) -> Vectors:
    """The messages, each of them some vectors, as they arrive from the codec."""
    n = len(messages)
    counts = np.array([len(message) for message in messages], np.int64)
    V = np.concatenate(messages) if n else np.zeros((0, D))
    records = [PlainRecord(offset, b"", 1000 * offset) for offset in offsets]
    stamps = np.array([record.timestamp for record in records], np.int64)
    after = offsets[-1] + 1 if n else 0
    return Vectors(0, Decoded(V, np.arange(n), [], counts), stamps, records, after, after)


def learned(
    messages: Sequence[Array],
    config: FoldConfig,
    chunks: Sequence[int],
    factor: float = FACTOR,
    *,
    restart: bool = False,
) -> tuple[Fold, list[int]]:
    """The fold after the messages in chunks of these sizes, and the offsets of those that were rejected."""
    fold, start, rejected = Fold.empty(config.learning), 0, []
    for size in chunks:
        offsets = range(start, start + size)
        after = screening.learn(fold, event(messages[start : start + size], offsets), config, factor)
        fold, start = after.fold, start + size
        rejected += [offsets[reject.place] for reject in after.rejects]
        assert {reject.reason for reject in after.rejects} <= {"implausible"}
        if restart:
            fold = files.decode(bits(fold, config)).fold
    return fold, rejected


def expected(messages: Sequence[Array], config: FoldConfig) -> tuple[Fold, list[int]]:
    """By the definition, one message after the other."""
    fold, rejected = Fold.empty(config.learning), []
    for offset, message in enumerate(messages):
        usual = np.sqrt(max(fold.state.total_variance, fold.stats.norm))
        started = fold.state.count > 0 and usual > 1e-9 * np.linalg.norm(fold.state.mean)
        if started and max(np.linalg.norm(v - fold.state.mean) for v in message) > FACTOR * usual:
            rejected.append(offset)
            fold = fold.at(offset + 1)
        else:
            fold, _ = fold.learn(message, [1000 * offset], offset + 1, config, np.array([len(message)]))
    return fold, rejected


def stream(config: FoldConfig, random: np.random.Generator, offset: float, largest: int = 3) -> list[Array]:
    """Messages of some vectors about a mean of this length, 2 % with a vector of another scale."""
    sizes = random.integers(1, largest + 1, 400)
    V = vectors(int(sizes.sum()), seed=int(random.integers(1000))) + offset / np.sqrt(D)
    messages = np.split(V, np.cumsum(sizes)[:-1])
    for i in np.flatnonzero(random.random(len(messages)) < 0.02):
        scales = [1e2, 1e3, 3e4, 1e6, 1e15]
        messages[i][random.integers(sizes[i])] *= random.choice(scales)
    most = config.learning.largest_value  # records with larger values are not decoded
    return [np.clip(message, -most, most).astype(config.learning.dtype) for message in messages]


@pytest.mark.parametrize("name", CONFIGS)
@given(seed=st.integers(0, 10**6), offset=st.sampled_from([0.0, 1e5]), data=st.data())
@settings(max_examples=5, deadline=None)
def test_any_chunks_give_the_fold_of_the_rule_applied_to_each_message(
    name: str, seed: int, offset: float, data: st.DataObject
) -> None:
    config = CONFIGS[name]
    messages = stream(config, np.random.default_rng(seed), offset)
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=8))
    sizes = [int(size) for size in np.diff([0, *sorted(cuts), len(messages)])]
    fold, rejected = expected(messages, config)
    for chunks, restart in ((sizes, True), ([len(messages)], False)):
        found, found_rejected = learned(messages, config, chunks, restart=restart)
        assert found_rejected == rejected
        assert bits(found, config) == bits(fold, config)


@pytest.mark.parametrize("scale", [1e6, 1e100])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.filterwarnings("error")
def test_the_model_is_the_one_of_the_stream_without_the_vector(name: str, scale: float) -> None:
    config = CONFIGS[name]
    scale = min(scale, config.learning.largest_value / 10)
    clean = vectors(1000, dtype=config.learning.dtype)
    V = np.insert(clean, 500, scale, axis=0).astype(config.learning.dtype)
    stamps = [1000 * min(i, 999) for i in range(1001)]
    messages = event([v[None] for v in V], range(1001))
    after = screening.learn(Fold.empty(config.learning), replace(messages, timestamps=np.array(stamps)), config, FACTOR)
    assert [reject.place for reject in after.rejects] == [500]
    assert "implausible_factor is 10000" in after.rejects[0].message
    without = fold_of(clean, config, stamps[:500] + stamps[501:])
    assert bits(after.fold, config) == bits(replace(without, position=1001), config)


def excess(V: Array, config: FoldConfig, after: Learned) -> float:
    """By how much the mean squared residual of V exceeds that of batch PCA, relatively."""
    Y = V - V.mean(axis=0)
    k, total = config.learning.components, (Y * Y).sum()
    basis = axes.model_of(after.fold.state, k).components
    best = (np.linalg.svd(Y, compute_uv=False)[:k] ** 2).sum()
    return float((total - ((Y @ basis.T) ** 2).sum()) / (total - best)) - 1.0


def test_the_loss_stays_that_of_batch_pca() -> None:
    config = fold_config()
    clean = vectors(20_000)
    V = np.insert(clean, [3000, 10_000], 1e100, axis=0)
    messages = event([v[None] for v in V], range(len(V)))
    ruined = screening.learn(Fold.empty(config.learning), messages, config, 0)
    kept = screening.learn(Fold.empty(config.learning), messages, config, FACTOR)
    assert (len(ruined.rejects), len(kept.rejects)) == (0, 2)
    assert excess(clean, config, ruined) > 0.1
    assert excess(clean, config, kept) < 1e-3


def test_a_message_is_rejected_as_a_whole() -> None:
    config = fold_config()
    messages = [v[None] for v in vectors(300)] + [np.concatenate([vectors(400), np.full((1, D), 1e9), vectors(5)])]
    messages += [vectors(10, seed=2)]
    fold, rejected = learned(messages, config, [302])
    assert rejected == [300]
    assert fold.stats.learned == 310


def test_nothing_is_implausible_before_the_first_block_is_learned() -> None:
    V = vectors(WARM_UP - 1)
    V[3] = 1e100
    fold, rejected = learned([v[None] for v in V], fold_config(), [len(V)])
    assert rejected == []
    assert fold.stats.learned == len(V)


@pytest.mark.parametrize("value", [0.0, 0.1, 12345.678])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_stream_may_begin_with_equal_vectors(name: str, value: float) -> None:
    config = CONFIGS[name]
    V = np.concatenate([np.full((700, D), value), vectors(300)]).astype(config.learning.dtype)
    assert learned([v[None] for v in V], config, [150] * 6 + [100])[1] == []


@pytest.mark.parametrize("name", [name for name in CONFIGS if "half-life" in name])
def test_a_stream_that_stands_still_for_many_half_lives_may_resume(name: str) -> None:
    config, V = CONFIGS[name], vectors(1000)
    still = np.repeat(V[-1:], 1000, axis=0)
    assert learned([v[None] for v in [*V, *still, *V]], config, [3000])[1] == []


def test_zero_switches_the_rule_off() -> None:
    config = fold_config()
    V = vectors(600)
    V[500] = 1e100
    fold, rejected = learned([v[None] for v in V], config, [600], factor=0)
    assert rejected == []
    assert bits(fold, config) == bits(fold_of(V, config, [1000 * i for i in range(600)]), config)


def test_one_call_learns_all_blocks_of_an_ordinary_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are compared one by one only if a sum of squares cannot rule out that any is implausible."""
    config, calls = fold_config(), []
    fold = fold_of(vectors(600), config)
    learn = learning.learn

    def counting(*arguments: Any) -> Any:
        calls.append(len(arguments[1]))
        return learn(*arguments)

    monkeypatch.setattr(learning, "learn", counting)
    screening.learn(fold, event([v[None] for v in vectors(2000, seed=1)], range(600, 2600)), config, FACTOR)
    assert len(calls) == 2  # the block that was pending, and all others
