"""The most unusual messages of a worker: which they are, where they come from, and when they are forgotten."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.consumer_group.listener import BatchLearned, PartitionsReleased
from streampca.pca.arrays import Array
from streampca.sources.memory import Do
from streampca.stores.worker_status import UnusualStatus
from streampca.stream import screening
from streampca.stream.decoded import Decoded, Reject
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import PlainRecord
from streampca.stream.screening import Learned, Screening
from streampca.worker.unusual import MOST, SPAN_S, UnusualMessages
from tests.stream.streams import WARM_UP, D, fold_config, vectors
from tests.worker.environment import POISON, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config

NOW = 1e9
ALL = Screening(0.0)  # are learned


class Clock:
    """Seconds since 1970, set by a test."""

    now = NOW

    def __call__(self) -> float:
        return self.now


class Item(NamedTuple):
    """A record's offset and vectors (n, d); None: it cannot be decoded."""

    offset: int
    vectors: Array | None

    @property
    def key(self) -> bytes | None:
        return b"sensor %d" % self.offset if self.offset % 3 else None


def event_of(items: Sequence[Item], partition: int = 0) -> Vectors:
    good = [(place, item.vectors) for place, item in enumerate(items) if item.vectors is not None and len(item.vectors)]
    rejects = [Reject(place, "wrong_length", "") for place, item in enumerate(items) if item.vectors is None]
    V = np.concatenate([np.zeros((0, D)), *(rows for _, rows in good)])
    counts = np.array([len(rows) for _, rows in good], np.int64)
    decoded = Decoded(V, np.array([place for place, _ in good], np.int64), rejects, counts)
    records = [PlainRecord(item.offset, b"", key=item.key) for item in items]
    after = items[-1].offset + 1 if items else 0
    return Vectors(partition, decoded, np.full(len(good), -1), records, after, after)


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def learn(unusual: UnusualMessages, fold: Fold, event: Vectors, config: FoldConfig, rules: Screening = ALL) -> Learned:
    learned = screening.learn(fold, event, config, rules)
    unusual.learn(event, fold, learned)
    return learned


def found_in(
    items: Sequence[Item], size: int, config: FoldConfig, rules: Screening = ALL, restart: int = -1
) -> tuple[list[UnusualStatus], int]:
    """What is found if so many records arrive at a time; and how many were learned before the restart, if any.

    The worker restarts before this chunk.
    """
    unusual, fold, forgotten = UnusualMessages(config.learning, Clock()), Fold.empty(config.learning), 0
    for i, part in enumerate(chunks(items, size)):
        if i == restart:
            unusual, forgotten = UnusualMessages(config.learning, Clock()), fold.stats.learned
        fold = learn(unusual, fold, event_of(part), config, rules).fold
    return list(unusual.all), forgotten


def expected(
    items: Sequence[Item], config: FoldConfig, rules: Screening = ALL, forgotten: int = 0
) -> list[tuple[float, int, int, bytes | None]]:
    """Ratio, offset, place among its record's vectors and key, message by message, but for the first ones."""
    learned = screening.learn(Fold.empty(config.learning), event_of(items), config, rules)
    bad = {reject.place for reject in learned.rejects}
    origins = [
        (item.offset, i, item.key)
        for place, item in enumerate(items)
        if place not in bad and item.vectors is not None
        for i in range(len(item.vectors))
    ]
    residuals = [float(r) for scores in learned.scores for r in scores.residual]
    start, mean, found = learned.fold.state.count - len(residuals), 0.0, []
    for i in range(0, len(residuals), 256):
        block = residuals[i : i + 256]
        if i:
            found += [(r / mean, *origins[start + i + j]) for j, r in enumerate(block) if start + i + j >= forgotten]
        share = 0.999**256 if i else 0.0
        mean = share * mean + (1 - share) * sum(block) / 256
    above = [each for each in found if each[0] > 1]
    return sorted(above, key=lambda each: -each[0])[:MOST]


def assert_as_expected(found: Sequence[UnusualStatus], wanted: Sequence[tuple[float, int, int, bytes | None]]) -> None:
    assert [(each.offset, each.vector) for each in found] == [each[1:3] for each in wanted]
    assert [each.key for each in found] == [key and key.decode() for *_, key in wanted]
    assert [each.ratio for each in found] == pytest.approx([each[0] for each in wanted])
    for each in found:
        assert UnusualStatus.model_validate_json(each.model_dump_json(), strict=True) == each


@st.composite
def streams(draw: st.DrawFn) -> list[Item]:
    """Records with gaps between their offsets, some with several vectors, with none, or not decodable."""
    random = np.random.default_rng(draw(st.integers(0, 999)))
    n, share = draw(st.integers(400, 1100)), draw(st.sampled_from([0.0, 0.02, 0.3]))
    kinds = np.where(random.random(n) < share, random.integers(0, 4, n), 1)
    V = vectors(int(kinds.sum()), seed=draw(st.integers(0, 9))) * random.exponential(1, (int(kinds.sum()), 1))
    ends, offsets = np.cumsum(kinds), np.cumsum(random.integers(1, 1 + draw(st.integers(1, 2)), n))
    return [
        Item(int(offset), None if i % 97 == 5 else V[end - kind : end])
        for i, (offset, end, kind) in enumerate(zip(offsets, ends, kinds, strict=True))
    ]


RULES = [ALL, Screening(5.0), Screening(0.0, 0.004), Screening(5.0, 0.004)]
SIZES = st.sampled_from([1, 7, 100, 256, 5000])


def places(found: Sequence[UnusualStatus]) -> list[dict[str, Any]]:
    """All but the deviations, which are those from the components before a batch."""
    return [each.model_dump(exclude={"dimensions", "shares"}) for each in found]


@settings(max_examples=20)
@given(items=streams(), size=SIZES, rules=st.sampled_from(RULES))
def test_the_same_messages_are_found_whatever_the_batches(items: list[Item], size: int, rules: Screening) -> None:
    found, _ = found_in(items, size, fold_config(), rules)
    assert_as_expected(found, expected(items, fold_config(), rules))
    assert places(found) == places(found_in(items, 130, fold_config(), rules)[0])


@settings(max_examples=10)
@given(items=streams(), size=SIZES, restart=st.integers(1, 12))
def test_after_a_restart_pending_messages_are_left_out(items: list[Item], size: int, restart: int) -> None:
    found, forgotten = found_in(items, size, fold_config(), restart=restart)
    assert_as_expected(found, expected(items, fold_config(), forgotten=forgotten))


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"center": False}, {"impute": True}])
def test_whatever_the_settings(options: dict[str, Any]) -> None:
    config, V = fold_config(50.0, **options), vectors(1000, seed=3)
    if "impute" in options:
        V[np.random.default_rng(0).random(V.shape) < 0.1] = np.nan
    items = [Item(offset, row[None]) for offset, row in enumerate(V)]
    found, _ = found_in(items, 90, config)
    assert len(found) == MOST
    assert_as_expected(found, expected(items, config))


def stream_with(odd: Array, n: int = 800, at: int = 600, d: int = D) -> list[Item]:
    """Ordinary messages, and an odd one at this offset."""
    V = vectors(n, d, seed=1)
    V[at] = odd
    return [Item(offset, row[None]) for offset, row in enumerate(V)]


@pytest.mark.parametrize("size", [1, 50, 5000])
@pytest.mark.parametrize("gaps", [False, True])
def test_the_dimensions_that_deviate_are_named(size: int, gaps: bool) -> None:
    items = stream_with(np.zeros(D))
    assert items[600].vectors is not None
    items[600].vectors[:] = np.mean(
        np.concatenate([item.vectors for item in items if item.vectors is not None]), axis=0
    )
    items[600].vectors[0, 4] -= 30
    items[600].vectors[0, 0] = np.nan if gaps else 0
    first = found_in(items, size, fold_config(impute=gaps))[0][0]
    assert (first.offset, first.dimensions[0], len(first.dimensions)) == (600, 4, 3)
    assert -1 <= first.shares[0] < -0.8
    assert sum(map(abs, first.shares)) == pytest.approx(1, abs=0.05)
    assert first.ratio > 100


def test_a_stream_without_residuals_has_finite_ratios() -> None:
    flat = np.outer(np.random.default_rng(0).normal(size=900), np.arange(1.0, D + 1))
    for V in (flat, np.ones((900, D)), np.zeros((900, D))):
        found, _ = found_in([Item(offset, row[None]) for offset, row in enumerate(V)], 100, fold_config())
        assert all(np.isfinite(each.ratio) and each.ratio < 100 for each in found)
    flat[700, 2] += 1e-3
    found, _ = found_in([Item(offset, row[None]) for offset, row in enumerate(flat)], 100, fold_config())
    assert (found[0].offset, found[0].dimensions[0]) == (700, 2)
    assert 1e3 < found[0].ratio < 1e16


def test_a_message_is_forgotten_after_two_spans() -> None:
    clock, config = Clock(), fold_config()
    unusual, fold = UnusualMessages(config.learning, clock), Fold.empty(config.learning)
    shown = []
    for i, part in enumerate(chunks(stream_with(np.full(D, 90.0), WARM_UP + 256 * 8, at=400), 256)):
        clock.now = NOW + i * SPAN_S / 2
        fold = learn(unusual, fold, event_of(part), config).fold
        shown.append(any(each.offset == 400 for each in unusual.all))
        assert len(unusual.all) <= MOST
    assert shown == [False, False, True, True, True, False, False, False, False]


def test_partitions_share_the_list_and_have_their_own_pending_messages() -> None:
    config = fold_config()
    unusual, folds = UnusualMessages(config.learning, Clock()), [Fold.empty(config.learning)] * 2
    streams = [stream_with(np.full(D, size)) for size in (90.0, -70.0)]
    for parts in zip(*(chunks(items, 33) for items in streams), strict=True):
        for p, part in enumerate(parts):
            folds[p] = learn(unusual, folds[p], event_of(part, p), config).fold
    assert {(each.partition, each.offset) for each in unusual.all[:2]} == {(0, 600), (1, 600)}
    assert len(unusual.all) == MOST
    unusual.cut(1, 601)
    assert any((each.partition, each.offset) == (1, 600) for each in unusual.all)
    unusual.cut(1, 600)
    assert all((each.partition, each.offset) < (1, 600) for each in unusual.all)


def test_what_is_lost_and_learned_again_is_listed_once() -> None:
    config, items = fold_config(), stream_with(np.full(D, 90.0))
    unusual, fold = UnusualMessages(config.learning, Clock()), Fold.empty(config.learning)
    fold = learn(unusual, fold, event_of(items[:300]), config).fold
    for _ in range(2):
        unusual.forget([0])
        later = learn(unusual, fold, event_of(items[300:]), config).fold
    assert later.position == 800
    assert_as_expected(unusual.all, expected(items, config, forgotten=300))


class WatchedRecord(PlainRecord):
    """Unlike one with slots, it can be referred to weakly."""


def test_no_reference_to_the_records_remains() -> None:
    config, items = fold_config(), stream_with(np.full(D, 90.0))
    unusual, event = UnusualMessages(config.learning, Clock()), event_of(items)
    event = replace(event, records=[WatchedRecord(item.offset, b"", key=item.key) for item in items])
    learn(unusual, Fold.empty(config.learning), event, config)
    assert unusual.all
    references = [weakref.ref(event.decoded.vectors), *map(weakref.ref, event.records)]
    del event
    assert not any(reference() is not None for reference in references)


def listed(worker: WorkerFixture) -> list[dict[int, bytes | None]]:
    """Offset → key, after each batch."""
    return [{each.offset: each.key for each in batch.unusual} for batch in worker.recorder.of_type(BatchLearned)]


def test_a_worker_finds_them_after_a_restart_among_rejects_and_gaps() -> None:
    env, V = Environment(), vectors(900, seed=1)
    V[650, 3], V[750, 1] = 90, -60
    keys: dict[int, str] = {}
    for run in (range(300), range(300, 900)):
        for i in run:
            if i % 50 == 0:
                env.send(0, [POISON])
                env.topic.skip(0, 3)
            env.topic.append(0, V[i].tobytes(), key=b"sensor %d" % i)
            keys[env.topic.logs[0].end - 1] = f"sensor {i}"
        worker = make_worker(env, worker_config(bad_records="skip", checkpoint_interval_s=60), batch=40)
        worker.run()
    env.assert_complete()
    last = listed(worker)[-1]
    assert len(last) == MOST
    assert {keys[offset] for offset in [*last][:2]} == {"sensor 650", "sensor 750"}
    assert all(keys[offset] == key for offset, key in last.items())


def test_a_log_that_is_cut_and_grows_again_shows_other_records() -> None:
    env, V = Environment(), vectors(600, seed=1)
    V[500] = 90
    env.send(0, V)

    def cut_and_grow() -> None:
        env.topic.truncate(0, 450)
        env.send(0, vectors(400, seed=7))

    worker = make_worker(env, worker_config(offset_gap="earliest"), script=[300, 300, Do(cut_and_grow)])
    worker.run()
    found = listed(worker)
    assert [500 in offsets for offsets in found] == [False, True, False]


def test_a_revoked_partition_is_forgotten_and_what_was_found_of_it_is_not() -> None:
    env, V = Environment(), vectors(1100, seed=1)
    V[500, 0], V[580, 1], V[850, 2] = 90, 90, 300
    env.send(0, V[:600])
    script = [600, Do(env.topic.rebalance), 0, Do(lambda: env.send(0, V[600:]))]
    worker = make_worker(env, worker_config(checkpoint_interval_s=60), script=script)
    worker.run()
    assert PartitionsReleased([0], lost=False) in worker.recorder.of_type(PartitionsReleased)
    last = listed(worker)[-1]
    assert 500 in last
    assert 850 in last
    assert 580 not in last, "it was pending when the partition was released"
