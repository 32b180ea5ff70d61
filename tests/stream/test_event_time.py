"""Laws of a partition's event time."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.stream.event_time import EventTime

DAY_MS = 24 * 3600 * 1000
FAR = 10**15

stamps = st.integers(-1, 10 * DAY_MS)
streams = st.lists(stamps, max_size=40)


@settings(deadline=None)
@given(stream=streams)
def test_time_never_decreases_nor_exceeds_the_timestamps(stream: list[int]) -> None:
    clock, accepted = EventTime(), []
    for stamp in stream:
        after, [step] = clock.advance([stamp])
        assert step >= 0
        assert after.now_ms >= clock.now_ms
        assert step == (after.now_ms - clock.now_ms if clock.now_ms >= 0 else 0)
        assert after.now_ms <= max([-1, *stream])
        clock = after
        accepted.append(clock.now_ms)
    assert accepted == reference(stream)


def reference(stream: list[int]) -> list[int]:
    """The greatest time that three consecutive records have reached so far."""
    known: list[int] = []
    now, nows = -1, []
    for stamp in stream:
        if stamp >= 0:
            known.append(stamp)
            now = max(now, min(known[-3:])) if len(known) >= 3 else now
        nows.append(now)
    return nows


@settings(deadline=None)
@given(stream=streams, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_poll_boundaries_do_not_matter(stream: list[int], cuts: list[int]) -> None:
    whole, steps = EventTime().advance(stream)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    clock, parts = EventTime(), []
    for start, end in itertools.pairwise(bounds):
        clock, part = clock.advance(stream[start:end])
        parts.append(part)
    assert clock == whole
    assert np.concatenate(parts).tolist() == steps.tolist()


@settings(deadline=None)
@given(stream=st.lists(st.integers(0, DAY_MS // 2), min_size=3, max_size=30), place=st.integers(0, 30))
def test_a_record_from_the_far_future_is_counted_but_does_not_advance_time(stream: list[int], place: int) -> None:
    place = min(place, len(stream))
    clock, steps = EventTime().advance([*stream[:place], FAR, *stream[place:]])
    assert clock.now_ms <= max(stream)
    assert steps.sum() <= max(stream)
    assert clock.ahead == (1 if place >= 3 else 0)  # before a time is known, no record is ahead of it


@settings(deadline=None)
@given(gaps=st.lists(st.integers(0, 1000), min_size=8, max_size=30), data=st.data())
def test_one_or_two_records_from_the_far_future_change_nothing(gaps: list[int], data: st.DataObject) -> None:
    stream = np.cumsum(gaps).tolist()
    place = data.draw(st.integers(0, len(stream) - 3))
    far = [FAR] * data.draw(st.integers(1, 2))
    clock, _ = EventTime().advance([*stream[:place], *far, *stream[place:]])
    without, _ = EventTime().advance(stream)
    assert (clock.now_ms, clock.last_ms, clock.before_last_ms) == (
        without.now_ms,
        without.last_ms,
        without.before_last_ms,
    )


def test_three_consecutive_records_advance_time() -> None:
    clock, steps = EventTime().advance([1000, 1000, 1000, FAR, FAR + 1, FAR + 2, FAR + 3])
    assert clock.now_ms == FAR + 1
    assert clock.ahead == 3
    assert steps.tolist() == [0, 0, 0, 0, 0, FAR - 1000, 1]


def test_a_record_is_ahead_of_time_by_more_than_a_day() -> None:
    assert EventTime().advance([0, 0, 0, DAY_MS])[0].ahead == 0
    assert EventTime().advance([0, 0, 0, DAY_MS + 1])[0].ahead == 1


@settings(deadline=None)
@given(stream=streams, places=st.lists(st.integers(0, 40), max_size=5))
def test_records_without_a_timestamp_change_nothing(stream: list[int], places: list[int]) -> None:
    with_unknown = list(stream)
    for place in places:
        with_unknown.insert(min(place, len(with_unknown)), -1)
    clock, steps = EventTime().advance(with_unknown)
    without, fewer = EventTime().advance(stream)
    assert clock == without
    assert steps[[stamp >= 0 for stamp in with_unknown]].tolist() == fewer[[s >= 0 for s in stream]].tolist()
    assert steps[[stamp < 0 for stamp in with_unknown]].sum() == 0


def test_without_timestamps_there_is_no_time() -> None:
    clock, steps = EventTime().advance([-1] * 5)
    assert clock == EventTime()
    assert steps.tolist() == [0] * 5


@settings(deadline=None)
@given(stream=streams)
def test_the_first_known_time_is_not_a_step(stream: list[int]) -> None:
    clock, steps = EventTime().advance(stream)
    first = next((now for now in reference(stream) if now >= 0), -1)
    assert steps.sum() == clock.now_ms - first
