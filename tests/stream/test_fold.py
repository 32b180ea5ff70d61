"""The fold of a partition: the same bits whatever the chunks, and what it holds, against plain loops and NumPy."""

from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import algorithm1, axes, learning
from streampca.pca.axes import model_of
from streampca.pca.blocked import gauge
from streampca.pca.merge import merge
from streampca.stream import checkpoint as files
from streampca.stream.fold import Fold, FoldConfig
from tests.stream.streams import START, D, bits, checkpoint_of, covariance, fold_config, fold_of, folded, vectors

SHAPES = {
    "plain": fold_config(),
    "float32": fold_config(dtype="float32"),
    "half-life in messages": fold_config(half_life_messages=70.0),
    "half-life in messages, float32": fold_config(half_life_messages=3.0, dtype="float32"),
    "half-life in seconds": fold_config(half_life_seconds=3.0),
    "half-life in seconds, float32": fold_config(half_life_seconds=0.5, dtype="float32"),
    "not centred": fold_config(center=False),
    "all columns": fold_config(components=D, half_life_seconds=3.0),
    "default start": fold_config(warm_up=None),
}


def stamps_of(n: int, seed: int = 1) -> list[int]:
    """Mostly rising, sometimes unknown, late, or from the far future."""
    random = np.random.default_rng(seed)
    stamps = np.cumsum(random.integers(0, 100, n)) + 1_000_000
    stamps = stamps - random.integers(0, 50, n)
    stamps[random.random(n) < 0.05] = -1
    stamps[random.random(n) < 0.02] += 10**12
    return [int(stamp) for stamp in stamps]


def chunks_of(total: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, total), max_size=12).map(
        lambda cuts: [int(size) for size in np.diff([0, *sorted(cuts), total])]
    )


@pytest.mark.parametrize("name", SHAPES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_neither_chunks_nor_restarts_change_one_bit(name: str, data: st.DataObject) -> None:
    own, total = SHAPES[name], 310
    n = data.draw(
        st.sampled_from([0, 1, START - 1, START, START + learning.BLOCK - 1, START + learning.BLOCK, 200, total])
    )
    V, stamps = vectors(n, dtype=own.learning.dtype), stamps_of(n)
    offsets = [int(offset) for offset in np.cumsum(np.random.default_rng(2).integers(1, 4, n))]
    whole = folded(Fold.empty(own.learning), V, own, stamps, offsets, [n])
    fold, start = Fold.empty(own.learning), 0
    for size in data.draw(chunks_of(n)):
        end = start + size
        fold = folded(fold, V[start:end], own, stamps[start:end], offsets[start:end], [size])
        if data.draw(st.booleans()):  # a restart: on from the checkpoint's bytes
            fold = files.decode(bits(fold, own)).fold
        start = end
    assert bits(fold, own) == bits(whole, own)


@pytest.mark.parametrize("name", SHAPES)
def test_one_message_at_a_time_is_the_same_as_all_at_once(name: str) -> None:
    own, n = SHAPES[name], 280
    V, stamps = vectors(n, dtype=own.learning.dtype), stamps_of(n)
    fold = folded(Fold.empty(own.learning), V, own, stamps, None, [1] * n)
    assert bits(fold, own) == bits(fold_of(V, own, stamps), own)


def test_how_the_vectors_lie_in_memory_does_not_matter() -> None:
    own, V = fold_config(), vectors(250)
    once = bits(fold_of(V, own), own)
    assert bits(fold_of(np.asfortranarray(V), own), own) == once
    assert bits(fold_of(np.repeat(V, 2, axis=0)[::2], own), own) == once
    frozen = np.frombuffer(V.tobytes(), np.float64).reshape(V.shape)
    assert bits(fold_of(frozen, own), own) == once
    shifted = np.frombuffer(b"?" + V.tobytes(), np.float64, offset=1).reshape(V.shape)
    assert bits(fold_of(shifted, own), own) == once


def test_vectors_of_another_precision_are_brought_to_that_of_the_fold() -> None:
    own, V = fold_config(dtype="float32"), vectors(30)
    fold = fold_of(V, own)
    assert fold.pending.dtype == np.float32
    assert bits(fold, own) == bits(fold_of(V.astype(np.float32), own), own)


def test_learning_changes_no_fold_that_was_there_before() -> None:
    own, V = fold_config(), vectors(300)
    before = fold_of(V[:100], own)
    kept = bits(before, own)
    before.learn(V[100:], [-1] * 200, 300, own)
    before.reject(["undecodable"])
    before.skip(1000)
    before.provisional(own.learning)
    assert bits(before, own) == kept


def test_the_vectors_may_be_overwritten_afterwards() -> None:
    own, V = fold_config(), vectors(250)
    kept = V.copy()
    fold = fold_of(V, own)
    V[:] = np.nan
    assert bits(fold, own) == bits(fold_of(kept, own), own)


def test_blocks_are_cut_on_the_count_of_messages() -> None:
    own, n = fold_config(), START + 2 * learning.BLOCK + 10
    fold = fold_of(vectors(n), own)
    assert fold.state.count == START + 2 * learning.BLOCK
    assert len(fold.pending) == len(fold.retention) == 10
    assert fold.stats.learned == n
    np.testing.assert_array_equal(fold.pending, vectors(n)[-10:])


def test_scores_are_handed_over_with_the_block_that_they_belong_to() -> None:
    own, V = fold_config(), vectors(START + learning.BLOCK + 5)
    fold, scores = Fold.empty(own.learning).learn(V[:-6], [-1] * (len(V) - 6), len(V) - 6, own)
    assert [len(score.residual) for score in scores] == [0]  # the start
    fold, scores = fold.learn(V[-6:], [-1] * 6, len(V), own)
    assert [len(score.residual) for score in scores] == [learning.BLOCK]


@pytest.mark.parametrize("n", [0, 1, 2, START - 1, START, START + 1, 150, 300])
def test_what_is_published_contains_every_message(n: int) -> None:
    """With all columns kept the model is exact, so nothing of it can be missing: neither pending nor the start's."""
    own, V = fold_config(components=D), vectors(n)
    state = fold_of(V, own).provisional(own.learning)
    assert state.count == n
    assert state.weight == pytest.approx(n)
    if n:
        np.testing.assert_allclose(state.mean, V.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(state.C @ state.C.T, covariance(V), atol=1e-10)
        assert state.total_variance == pytest.approx(np.trace(covariance(V)), abs=1e-12)


def test_few_messages_wait_for_the_start() -> None:
    own = fold_config()
    fold = fold_of(vectors(START - 1), own)
    assert (fold.state.count, fold.state.rank, len(fold.pending)) == (0, 0, START - 1)
    assert fold.stats.scored == 0


def weights_of(retention: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What is left of each message at the end: the product of the retentions after it."""
    return np.array([np.prod(retention[i + 1 :]) for i in range(len(retention))])


def test_a_half_life_in_messages_halves_the_weight_after_so_many() -> None:
    own, V = fold_config(components=D, half_life_messages=30.0), vectors(250)
    weights = 0.5 ** (np.arange(249, -1, -1) / 30)
    state = fold_of(V, own).provisional(own.learning)
    assert state.weight == pytest.approx(weights.sum())
    np.testing.assert_allclose(state.C @ state.C.T, covariance(V, weights), atol=1e-10)


def test_a_half_life_in_seconds_halves_the_weight_after_so_much_record_time() -> None:
    own, V = fold_config(components=D, half_life_seconds=4.0), vectors(250)
    gaps = np.random.default_rng(3).integers(0, 200, 250)
    stamps = np.cumsum(gaps) + 10**12
    believed = np.array([stamps[i - 2] if i >= 2 else stamps[0] for i in range(250)])  # three records must agree
    weights = 0.5 ** ((believed[-1] - believed) / 4000)
    fold = fold_of(V, own, [int(stamp) for stamp in stamps])
    state = fold.provisional(own.learning)
    assert fold.event_time.now_ms == believed[-1]
    assert state.weight == pytest.approx(weights.sum())
    np.testing.assert_allclose(state.C @ state.C.T, covariance(V, weights), atol=1e-10)


def test_an_age_without_messages_forgets_all_before_it_and_breaks_nothing() -> None:
    own, V = fold_config(components=D, half_life_seconds=1.0), vectors(200)
    stamps = [10**9] * 100 + [10**13] * 100
    fold = fold_of(V, own, stamps)
    state = fold.provisional(own.learning)
    late = V[102:]  # the first two after the gap were learned before it was believed
    assert state.weight == pytest.approx(len(late))
    np.testing.assert_allclose(state.C @ state.C.T, covariance(late), atol=1e-10)
    assert files.decode(bits(fold, own)).fold.position == 200


def test_without_a_half_life_nothing_is_forgotten() -> None:
    own = fold_config()
    assert own.retention(np.array([0, 5, 10**12])).tolist() == [1, 1, 1]
    assert own.decay(10**12) == 1
    assert fold_config(half_life_messages=5.0).decay(10**12) == 1


def test_decay_is_what_time_without_messages_leaves() -> None:
    own = fold_config(half_life_seconds=2.0)
    assert own.decay(0) == 1
    assert own.decay(2000) == pytest.approx(0.5)
    assert own.decay(6000) == pytest.approx(0.125)
    assert own.decay(10**14) == 0
    assert own.retention(np.array([6000]))[0] == pytest.approx(own.decay(6000))


@pytest.mark.parametrize("name", ["plain", "not centred", "half-life in messages", "half-life in seconds"])
def test_losses_are_those_of_a_plain_loop(name: str) -> None:
    own, n = SHAPES[name], START + 3 * learning.BLOCK + 7
    V, stamps = vectors(n), stamps_of(n)
    fold = fold_of(V, own, stamps)
    residuals, norms = plain_losses(own, V, stamps)
    stats = fold.stats
    assert stats.scored == 3 * learning.BLOCK == len(residuals)
    assert stats.loss == pytest.approx(np.mean(residuals), rel=1e-9)
    assert stats.norm == pytest.approx(np.mean(norms), rel=1e-9)
    kept = (1 - 1 / 1000) ** learning.BLOCK
    ewma = float(np.mean(residuals[: learning.BLOCK]))
    for block in (1, 2):
        of_block = residuals[block * learning.BLOCK : (block + 1) * learning.BLOCK]
        ewma = kept * ewma + (1 - kept) * float(np.mean(of_block))
    assert stats.loss_ewma == pytest.approx(ewma, rel=1e-9)
    assert 0 < stats.loss_ewma < stats.norm_ewma


def plain_losses(own: FoldConfig, V: Any, stamps: list[int]) -> tuple[list[float], list[float]]:
    """Each message about the running mean before it, by the k leading columns of its factor, axes as a block starts.

    Where a message of a block weighs much, the block is absorbed, and the factor stays until then.
    """
    residuals, norms = [], []
    mean, k, center = np.zeros(D), own.learning.components, own.learning.center
    retention = own.retention(Fold.empty(own.learning).event_time.advance(stamps)[1])
    a = 1 / np.array(list(accumulate(retention, lambda weight, kept: kept * weight + 1, initial=0.0)))[1:]
    C = S = np.zeros((D, 0))
    for i, v in enumerate(V[: START + 3 * learning.BLOCK]):
        y = v - mean
        if i >= START:
            if (i - START) % learning.BLOCK == 0:
                rows, variance = axes.principal(fold_of(V[:i], own, stamps[:i]).state.C, own.learning.columns)
                C, S = rows.T * np.sqrt(variance), np.diag(1 / variance)
                absorbed = a[i : i + learning.BLOCK].max() > gauge.LARGEST_SHARE
            first = np.linalg.qr(C[:, :k])[0]
            residuals.append(float(np.sum((y - first @ (first.T @ y)) ** 2)))
            norms.append(float(y @ y))
            if not absorbed:
                C, S, _ = algorithm1.sherman_morrison(C, S, np.sqrt(1 - a[i] * center) * y, a[i])
        mean = mean + y * (a[i] * center)
    return residuals, norms


@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.sampled_from(["undecodable", "wrong_length", "no_value"]), max_size=4),
            st.integers(0, 50),
        ),
        max_size=12,
    )
)
@settings(max_examples=50, deadline=None)
def test_counts_add_up(steps: list[list[str] | int]) -> None:
    own = fold_config()
    fold, learned, refused = Fold.empty(own.learning), 0, []
    for step in steps:
        if isinstance(step, int):
            learned += step
            fold, _ = fold.learn(vectors(step), [-1] * step, learned, own)
        else:
            refused += step
            fold = fold.reject(step)
    assert fold.stats.learned == learned
    assert dict(fold.stats.rejected) == {reason: refused.count(reason) for reason in set(refused)}
    assert fold.state.count + len(fold.pending) == learned


@given(stamps=st.lists(st.integers(-1, 10**13), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=50, deadline=None)
def test_first_and_last_timestamp_are_the_least_and_the_greatest(stamps: list[int], cuts: list[int]) -> None:
    own, n = fold_config(), len(stamps)
    sizes = [int(size) for size in np.diff([0, *sorted(min(cut, n) for cut in cuts), n])]
    stats = folded(Fold.empty(own.learning), vectors(n), own, stamps, None, sizes).stats
    known = [stamp for stamp in stamps if stamp >= 0]
    assert stats.first_ms == min(known, default=-1)
    assert stats.last_ms == max(known, default=-1)


def test_a_position_is_never_taken_back_and_passes_over_offsets_without_records() -> None:
    own = fold_config()
    fold, _ = Fold.empty(own.learning).learn(vectors(2), [-1, -1], 40, own)
    assert fold.position == 40
    fold, _ = fold.learn(vectors(0), [], 55, own)  # markers of a transaction
    assert (fold.position, fold.stats.learned) == (55, 2)
    fold, _ = fold.learn(vectors(0), [], 50, own)
    assert fold.position == 55


def test_offsets_removed_by_retention_are_counted() -> None:
    own = fold_config()
    fold, _ = Fold.empty(own.learning).learn(vectors(2), [-1, -1], 40, own)
    fold = fold.skip(100).skip(130)
    assert (fold.position, fold.stats.gap) == (130, 90)
    assert Fold.empty(own.learning).skip(100).stats.gap == 0  # nothing was promised yet


def test_nothing_read_yet() -> None:
    own = fold_config()
    fold = Fold.empty(own.learning)
    assert fold.position == -1
    assert asdict(fold.stats)["learned"] == 0
    assert fold.provisional(own.learning).count == 0
    assert fold.learn(vectors(0), [], -1, own)[0].position == -1


def test_settings_of_a_shape_are_plain_values() -> None:
    own = fold_config(half_life_seconds=3.0)
    values = own.as_dict()
    assert {type(value) for value in values.values()} <= {int, float, str, bool, type(None)}
    assert (values["start"], values["block"], values["half_life_seconds"]) == (START, learning.BLOCK, 3.0)
    assert fold_config(warm_up=None).as_dict()["start"] == 200


def test_folds_of_parts_merge_to_the_covariance_of_the_whole() -> None:
    own = fold_config(components=D)
    parts = [vectors(n, seed=n) for n in (3, 90, 250)]
    state = merge([fold_of(V, own).provisional(own.learning) for V in parts], D)
    model = model_of(state, D)
    np.testing.assert_allclose(
        model.components.T * model.explained_variance @ model.components, covariance(np.vstack(parts)), atol=1e-9
    )


def test_the_bytes_of_a_checkpoint_are_what_equality_means_here() -> None:
    """The tests above compare bytes: those differ when any number of the fold does."""
    own = fold_config()
    fold = fold_of(vectors(150), own)
    other = vectors(150)
    other[3, 2] = other[3, 2] * (1 + 1e-12)
    assert bits(fold_of(other, own), own) != bits(fold, own)
    assert files.encode(checkpoint_of(fold, own)) == bits(fold, own)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("name", ["plain", "half-life in messages", "half-life in seconds"])
def test_records_of_many_vectors_in_any_chunks_and_restarts(name: str, data: st.DataObject) -> None:
    """A block may end within a record: the record is learned whole all the same, and the position is behind it."""
    own, counts = SHAPES[name], np.array([1, 7, 64, 1, 100, 3, 2, 65, 30, 1])
    total, records = int(counts.sum()), len(counts)
    V, stamps, ends = vectors(total), stamps_of(records), np.cumsum(counts)
    whole, _ = Fold.empty(own.learning).learn(V, stamps, records, own, counts)
    fold, start = Fold.empty(own.learning), 0
    for size in data.draw(chunks_of(records)):
        end = start + size
        part = V[ends[start] - counts[start] if size else 0 : ends[end - 1] if size else 0]
        fold, _ = fold.learn(part, stamps[start:end], end, own, counts[start:end])
        assert (fold.position, fold.stats.learned) == (end, sum(counts[:end]))
        if data.draw(st.booleans()):
            fold = files.decode(bits(fold, own)).fold
        start = end
    assert bits(fold, own) == bits(whole, own)


def test_a_record_of_many_vectors_is_as_its_vectors_one_by_one_without_time() -> None:
    own, V = fold_config(half_life_messages=70.0), vectors(150)
    together, _ = Fold.empty(own.learning).learn(V, [5, 5, 5], 3, own, np.array([20, 90, 40]))
    alone, _ = Fold.empty(own.learning).learn(V, [5] * 150, 3, own)
    assert bits(together, own) == bits(alone, own)


def test_the_time_of_a_record_passes_once_whatever_it_holds() -> None:
    """Three records must agree on the time: many vectors of one record do not."""
    own, V = fold_config(components=D, half_life_seconds=4.0), vectors(6)
    stamps = [1000, 1000, 1000, 10**12, 5000, 5000, 5000]
    counts = np.array([1, 1, 1, 50, 1, 1, 1])
    fold, _ = Fold.empty(own.learning).learn(np.repeat(V, [1, 1, 1, 51, 1, 1], axis=0), stamps, 7, own, counts)
    assert fold.event_time.now_ms == 5000
    assert fold.event_time.ahead == 1
    assert fold.provisional(own.learning).weight == pytest.approx((3 + 50 + 1) / 2 + 2)  # after four seconds, two
